#include "tests/kernels/counting/kv_layers.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <string_view>
#include <vector>

#include "kernels/core/buffer.h"
#include "kernels/core/dtype.h"
#include "kernels/core/exec_context.h"
#include "kernels/kv_format/dense.h"
#include "kernels/kv_format/diffkv.h"
#include "kernels/kv_format/hidden.h"
#include "kernels/kv_format/shadowkv.h"
#include "kernels/kv_format/unobserved_range.h"
#include "kernels/ops/diffkv_params.h"
#include "kernels/ops/diffkv_policy.h"
#include "kernels/ops/op_table.h"
#include "kernels/ops/params.h"
#include "kernels/ops/shadowkv_params.h"

namespace baton::kernels {
namespace {

constexpr int32_t kKvHeads = LlamaLayer::kKvHeads;
constexpr int32_t kHeadDim = LlamaLayer::kHeadDim;
constexpr int32_t kWidth = LlamaLayer::kKvWidth;
constexpr int32_t kPageTokens = 32;
constexpr float kScale = 0.08838834764f;  // 128^-1/2

// Uniform in [-1, 1), quickly.
std::vector<float> Floats(size_t count, uint32_t seed) {
  std::minstd_rand random(seed);
  std::vector<float> values(count);
  for (float& value : values) {
    value = static_cast<float>(random() % (1u << 20)) * 0x1p-19f - 1.0f;
  }
  return values;
}

// Pages of format dense or fp8.
class PagedLayers final : public KvLayers {
 public:
  PagedLayers(DType dtype, int32_t tokens, int layers)
      : tokens_(tokens),
        layout_{
            .page_tokens = kPageTokens, .kv_heads = kKvHeads, .head_dim = kHeadDim, .dtype = dtype},
        pages_each_(layout_.pages_for(tokens + 1)),
        memory_(layout_.stride_bytes() * static_cast<size_t>(pages_each_ * layers)),
        table_(static_cast<size_t>(pages_each_ * layers)),
        k_(Floats(static_cast<size_t>(tokens) * kWidth, 1)),
        v_(Floats(static_cast<size_t>(tokens) * kWidth, 2)),
        q_(Floats(kQueryFloats, 3)),
        positions_(static_cast<size_t>(tokens)),
        out_(kQueryFloats) {
    std::iota(table_.begin(), table_.end(), 0);
    std::iota(positions_.begin(), positions_.end(), 0);
  }

  bool Encode(const OpTable& ops, const ExecContext& exec, int layer) override {
    return Write(ops, exec, layer, positions_.data(), tokens_);
  }
  bool Append(const OpTable& ops, const ExecContext& exec, int layer) override {
    return Write(ops, exec, layer, &tokens_, 1);
  }
  bool Attend(const OpTable& ops, const ExecContext& exec, int layer) override {
    const SequenceRows row = {.row_begin = 0, .row_count = 1, .page_table = table(layer)};
    return ops
        .paged_attention(exec,
                         {.q = q_.data(),
                          .q_stride = kQueryFloats,
                          .positions = &tokens_,
                          .sequences = &row,
                          .num_sequences = 1,
                          .pages = pages(),
                          .heads = LlamaLayer::kHeads,
                          .scale = kScale,
                          .out = out_.data(),
                          .out_stride = kQueryFloats})
        .ok();
  }
  const std::vector<float>& out() const override { return out_; }

  DensePages pages() { return {.base = memory_.data(), .layout = layout_}; }
  const int32_t* table(int layer) const { return table_.data() + int64_t{layer} * pages_each_; }

 private:
  bool Write(const OpTable& ops,
             const ExecContext& exec,
             int layer,
             const int32_t* positions,
             int32_t rows) {
    const SequenceRows sequence = {.row_begin = 0, .row_count = rows, .page_table = table(layer)};
    return ops
        .kv_write(exec,
                  {.k = k_.data(),
                   .k_stride = kWidth,
                   .v = v_.data(),
                   .v_stride = kWidth,
                   .positions = positions,
                   .sequences = &sequence,
                   .num_sequences = 1,
                   .pages = pages()})
        .ok();
  }

  const int32_t tokens_;
  const DensePageLayout layout_;
  const int32_t pages_each_;
  Buffer memory_;
  std::vector<int32_t> table_;
  const std::vector<float> k_;
  const std::vector<float> v_;
  const std::vector<float> q_;
  std::vector<int32_t> positions_;
  std::vector<float> out_;
};

class DiffKvLayers final : public KvLayers {
 public:
  DiffKvLayers(int32_t tokens, int layers)
      : tokens_(tokens),
        columns_(kGeometry.columns_for(tokens + 1)),
        source_(DType::kBF16, tokens, 1),
        memory_(kGeometry.page_bytes() * static_cast<size_t>(columns_ * kKvHeads * layers)),
        table_(static_cast<size_t>(columns_ * kKvHeads * layers)),
        counts_(static_cast<size_t>(kKvHeads * kDiffKvTiers * layers)),
        prompt_counts_(static_cast<size_t>(kKvHeads * kDiffKvTiers)),
        ids_(table_.size()),
        used_(static_cast<size_t>(layers)),
        classes_(static_cast<size_t>(kKvHeads * tokens)),
        scores_(static_cast<size_t>(kKvHeads * tokens), 1.0f),
        probabilities_(static_cast<size_t>(kKvHeads * (tokens + 1))),
        scratch_(
            static_cast<size_t>(DiffKvScratchFloats(kGeometry, LlamaLayer::kHeads, tokens + 1))),
        kv_(Floats(2 * kWidth, 4)),
        q_(Floats(kQueryFloats, 3)),
        out_(kQueryFloats) {
    std::iota(ids_.begin(), ids_.end(), 0);
    for (int32_t i = 0; i < kKvHeads * tokens; ++i) {
      const bool high = i % tokens % 20 < 3;
      classes_[static_cast<size_t>(i)] = high ? DiffKvClass::kHigh : DiffKvClass::kLow;
      const int32_t tier = high ? kDiffKvHigh : kDiffKvLow;
      ++prompt_counts_[static_cast<size_t>(i / tokens) * kDiffKvTiers + static_cast<size_t>(tier)];
    }
  }

  // A prompt in other pages than before when it is encoded again would be another op: the first
  // call takes the pages.
  bool Encode(const OpTable& ops, const ExecContext& exec, int layer) override {
    if (!source_written_) {
      source_written_ = source_.Encode(ops, exec, 0);
    }
    DiffKvLease lease = Lease(layer);
    std::copy(prompt_counts_.begin(), prompt_counts_.end(), Layer(layer).token_counts);
    const bool assigned =
        ops.diffkv_assign_pages(exec,
                                {.geometry = kGeometry, .layer = Layer(layer), .lease = &lease})
            .ok();
    used_[static_cast<size_t>(layer)] = lease.used;
    return assigned && ops.diffkv_encode(exec,
                                         {.source = source_.pages(),
                                          .source_table = source_.table(0),
                                          .tokens = tokens_,
                                          .classes = classes_.data(),
                                          .scores = scores_.data(),
                                          .score_stride = tokens_,
                                          .layer = Layer(layer),
                                          .pages = pages()})
                           .ok();
  }
  bool Append(const OpTable& ops, const ExecContext& exec, int layer) override {
    DiffKvLease lease = Lease(layer);
    lease.used = used_[static_cast<size_t>(layer)];
    std::copy(prompt_counts_.begin(), prompt_counts_.end(), Layer(layer).token_counts);
    std::vector<DiffKvAction> actions(kKvHeads);
    const UnobservedRange unobserved = DiffKvUnobserved(0, tokens_);
    DiffKvAppendRow row = {.layer = Layer(layer),
                           .policy = {.unobserved = &unobserved, .unobserved_count = 1},
                           .position = tokens_,
                           .lease = &lease,
                           .actions = actions.data()};
    return ops.diffkv_sweep(exec, {.rows = &row, .num_rows = 1, .pages = pages()}).ok() &&
           ops.diffkv_take_pages(exec,
                                 {.rows = &row, .layers = 1, .sequences = 1, .pages = pages()})
               .ok() &&
           ops.diffkv_append(exec,
                             {.k = kv_.data(),
                              .v = kv_.data() + kWidth,
                              .stride = kWidth,
                              .rows = &row,
                              .num_rows = 1,
                              .pages = pages()})
               .ok();
  }
  bool Attend(const OpTable& ops, const ExecContext& exec, int layer) override {
    DiffKvAttentionRow row = {.layer = Layer(layer),
                              .position = tokens_,
                              .probabilities = probabilities_.data(),
                              .probability_stride = tokens_ + 1};
    return ops
        .diffkv_attention(exec,
                          {.q = q_.data(),
                           .q_stride = static_cast<int64_t>(q_.size()),
                           .out = out_.data(),
                           .out_stride = static_cast<int64_t>(out_.size()),
                           .scratch = scratch_.data(),
                           .rows = &row,
                           .num_rows = 1,
                           .pages = pages(),
                           .heads = LlamaLayer::kHeads,
                           .scale = kScale})
        .ok();
  }
  const std::vector<float>& out() const override { return out_; }

 private:
  static constexpr DiffKvGeometry kGeometry = {.kv_heads = kKvHeads, .head_dim = kHeadDim};

  DiffKvLayer Layer(int layer) {
    return {.page_table = table_.data() + int64_t{layer} * columns_ * kKvHeads,
            .token_counts = counts_.data() + int64_t{layer} * kKvHeads * kDiffKvTiers,
            .columns = columns_};
  }
  DiffKvPages pages() { return {.base = memory_.data(), .geometry = kGeometry}; }
  DiffKvLease Lease(int layer) {
    return {.ids = ids_.data() + int64_t{layer} * columns_ * kKvHeads,
            .count = columns_ * kKvHeads};
  }

  const int32_t tokens_;
  const int32_t columns_;
  PagedLayers source_;
  bool source_written_ = false;
  Buffer memory_;
  std::vector<int32_t> table_;
  std::vector<int32_t> counts_;
  std::vector<int32_t> prompt_counts_;  // of a layer
  std::vector<int32_t> ids_;
  std::vector<int32_t> used_;
  std::vector<DiffKvClass> classes_;
  const std::vector<float> scores_;
  std::vector<float> probabilities_;
  std::vector<float> scratch_;
  const std::vector<float> kv_;
  const std::vector<float> q_;
  std::vector<float> out_;
};

class ShadowKvLayers final : public KvLayers {
 public:
  ShadowKvLayers(int32_t tokens, int layers)
      : layout_({.rank = 160,
                 .chunk_tokens = 8,
                 .budget_tokens = tokens / 16,
                 .outlier_chunks = 48,
                 .local_chunks = 8,
                 .sink_chunks = 1,
                 .value_bits = 4,
                 .kv_heads = kKvHeads,
                 .head_dim = kHeadDim},
                tokens),
        tail_layout_(layout_, 1),
        cache_layout_(layout_.config, ShadowKvCachedValues::kDequantized),
        source_(DType::kBF16, tokens, 1),
        prompts_(layout_.bytes * static_cast<size_t>(layers)),
        tails_(tail_layout_.bytes * static_cast<size_t>(layers)),
        caches_(cache_layout_.bytes * static_cast<size_t>(layers)),
        ids_(static_cast<size_t>(kKvHeads * layout_.config.budget_chunks())),
        kv_(Floats(2 * kWidth, 4)),
        q_(Floats(kQueryFloats, 3)),
        out_(kQueryFloats) {
    const int32_t half = kHeadDim / 2;
    for (int32_t position = 0; position <= tokens; ++position) {
      for (int32_t i = 0; i < half; ++i) {
        const float angle = static_cast<float>(position) *
                            std::pow(500000.0f, -static_cast<float>(i) / static_cast<float>(half));
        cosines_.push_back(std::cos(angle));
        sines_.push_back(std::sin(angle));
      }
    }
  }

  bool Encode(const OpTable& ops, const ExecContext& exec, int layer) override {
    if (!source_written_) {
      source_written_ = source_.Encode(ops, exec, 0);
    }
    return ops
        .shadowkv_encode(exec,
                         {.layout = layout_,
                          .pages = source_.pages(),
                          .page_table = source_.table(0),
                          .rope = rope(),
                          .prompt = prompts_.data() + static_cast<size_t>(layer) * layout_.bytes})
        .ok();
  }
  size_t prompt_bytes() const override { return layout_.bytes; }
  bool Append(const OpTable& ops, const ExecContext& exec, int layer) override {
    const ShadowKvSequence sequence = Sequence(layer);
    return ops
        .shadowkv_append(exec,
                         {.k = kv_.data(),
                          .k_stride = kWidth,
                          .v = kv_.data() + kWidth,
                          .v_stride = kWidth,
                          .sequences = &sequence,
                          .num_sequences = 1,
                          .rope = rope()})
        .ok();
  }
  // Selection and attention; the step before had another query, so nothing of it is cached.
  bool Attend(const OpTable& ops, const ExecContext& exec, int layer) override {
    ShadowKvSequence sequence = Sequence(layer);
    std::memset(sequence.cache, 0, cache_layout_.keys);
    ShadowKvCounters counters;
    sequence.counters = &counters;
    return ops.shadowkv_select(exec,
                               {.q = q_.data(),
                                .q_stride = kQueryFloats,
                                .sequences = &sequence,
                                .num_sequences = 1,
                                .heads = LlamaLayer::kHeads,
                                .scale = kScale,
                                .chunk_ids = ids_.data(),
                                .chunk_ids_stride = layout_.config.budget_chunks()})
               .ok() &&
           ops.shadowkv_attention(exec,
                                  {.q = q_.data(),
                                   .q_stride = kQueryFloats,
                                   .sequences = &sequence,
                                   .num_sequences = 1,
                                   .heads = LlamaLayer::kHeads,
                                   .scale = kScale,
                                   .chunk_ids = ids_.data(),
                                   .chunk_ids_stride = layout_.config.budget_chunks(),
                                   .rope = rope(),
                                   .out = out_.data(),
                                   .out_stride = kQueryFloats})
               .ok();
  }
  const std::vector<float>& out() const override { return out_; }
  size_t workspace_bytes(const OpTable& ops, int threads) const override {
    return std::max(KvLayers::workspace_bytes(ops, threads),
                    ops.shadowkv_workspace_bytes(threads,
                                                 {.config = layout_.config,
                                                  .heads = LlamaLayer::kHeads,
                                                  .max_tokens = layout_.prompt_tokens + 1}));
  }

 private:
  ShadowKvRope rope() const {
    return {
        .cosines = cosines_.data(), .sines = sines_.data(), .positions = layout_.prompt_tokens + 1};
  }
  ShadowKvSequence Sequence(int layer) {
    const auto index = static_cast<size_t>(layer);
    return {.layout = &layout_,
            .prompt = prompts_.data() + index * layout_.bytes,
            .tail = tails_.data() + index * tail_layout_.bytes,
            .max_generated = 1,
            .position = static_cast<int32_t>(layout_.prompt_tokens),
            .cache = caches_.data() + index * cache_layout_.bytes};
  }

  const ShadowKvPromptLayout layout_;
  const ShadowKvTailLayout tail_layout_;
  const ShadowKvCacheLayout cache_layout_;
  PagedLayers source_;
  bool source_written_ = false;
  Buffer prompts_;
  Buffer tails_;
  Buffer caches_;
  std::vector<int32_t> ids_;
  const std::vector<float> kv_;
  const std::vector<float> q_;
  std::vector<float> out_;
  std::vector<float> cosines_;
  std::vector<float> sines_;
};

// Coded hidden states: one row per token for all upper layers.
class HiddenRows final : public KvLayers {
 public:
  HiddenRows(DType dtype, int32_t tokens, int layers)
      : tokens_(tokens),
        layout_{.width = LlamaLayer::kHidden, .dtype = dtype},
        rows_(layout_.row_bytes() * static_cast<size_t>(tokens + 1) * static_cast<size_t>(layers)),
        x_(Floats(static_cast<size_t>(tokens) * LlamaLayer::kHidden, 5)),
        out_(x_.size()) {}

  bool Encode(const OpTable& ops, const ExecContext& exec, int layer) override {
    return Code(ops, exec, layer, 0, tokens_);
  }
  bool Append(const OpTable& ops, const ExecContext& exec, int layer) override {
    return Code(ops, exec, layer, tokens_, 1);
  }
  bool Attend(const OpTable& ops, const ExecContext& exec, int layer) override {
    return ops
        .hidden_decode(exec,
                       {.coded = Row(layer, 0),
                        .rows = tokens_,
                        .layout = layout_,
                        .out = out_.data(),
                        .out_stride = LlamaLayer::kHidden})
        .ok();
  }
  const std::vector<float>& out() const override { return out_; }

 private:
  bool Code(const OpTable& ops, const ExecContext& exec, int layer, int32_t begin, int32_t rows) {
    return ops
        .hidden_encode(exec,
                       {.x = x_.data(),
                        .x_stride = LlamaLayer::kHidden,
                        .rows = rows,
                        .layout = layout_,
                        .coded = Row(layer, begin)})
        .ok();
  }
  std::byte* Row(int layer, int32_t row) {
    return rows_.data() +
           layout_.row_bytes() * (static_cast<size_t>(layer) * static_cast<size_t>(tokens_ + 1) +
                                  static_cast<size_t>(row));
  }

  const int32_t tokens_;
  const HiddenRowLayout layout_;
  Buffer rows_;
  const std::vector<float> x_;
  std::vector<float> out_;
};

}  // namespace

size_t KvLayers::workspace_bytes(const OpTable& ops, int threads) const {
  return ops.workspace_bytes(threads, LlamaLayer::kHidden, kHeadDim);
}

std::unique_ptr<KvLayers> MakeKvLayers(std::string_view format, int32_t tokens, int layers) {
  if (format == "dense" || format == "fp8") {
    return std::make_unique<PagedLayers>(
        format == "dense" ? DType::kBF16 : DType::kF8E4M3, tokens, layers);
  }
  if (format == "diffkv") {
    return std::make_unique<DiffKvLayers>(tokens, layers);
  }
  if (format == "shadowkv") {
    return std::make_unique<ShadowKvLayers>(tokens, layers);
  }
  if (format == "hidden" || format == "hidden8") {
    return std::make_unique<HiddenRows>(
        format == "hidden" ? DType::kBF16 : DType::kF8E4M3, tokens, layers);
  }
  return nullptr;
}

}  // namespace baton::kernels
