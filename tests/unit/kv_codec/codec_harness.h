// Encoded KV formats without a model: random keys, values and queries.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "common/base/check.h"
#include "common/base/pieces.h"
#include "common/base/status_macros.h"
#include "common/kv/codec/codec_context.h"
#include "common/kv/codec/codec_set.h"
#include "common/kv/codec/encoded_format.h"
#include "common/kv/codec/encoded_kv.h"
#include "common/kv/codec/kv_calibration.h"
#include "common/kv/codec/kv_policy.h"
#include "common/kv/codec/policy_params.h"
#include "common/kv/codec/shadowkv/shadowkv_format.h"
#include "common/kv/codec/shadowkv/shadowkv_map.h"
#include "common/kv/pool/page_copies.h"
#include "kernels/core/buffer.h"
#include "kernels/core/exec_context.h"
#include "kernels/core/memory.h"
#include "kernels/core/step_arrays.h"
#include "kernels/core/thread_pool.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/kv_format/dense.h"
#include "kernels/kv_format/shadowkv.h"
#include "kernels/ops/op_table.h"
#include "kernels/ops/params.h"

namespace baton::kv {

inline constexpr int32_t kTestLayers = 3;
inline constexpr int32_t kTestFullLayers = 1;  // the others are the upper layers of a SwiftKV model
inline constexpr int32_t kTestKvHeads = 2;
inline constexpr int32_t kTestHeads = 4;
inline constexpr int32_t kTestHeadDim = 64;
inline constexpr size_t kTestKvWidth = size_t{kTestKvHeads} * kTestHeadDim;
inline constexpr size_t kTestQueryWidth = size_t{kTestHeads} * kTestHeadDim;
inline constexpr float kTestScale = 0.125f;

// `count` random floats that depend on the four numbers alone.
inline std::vector<float> TestFloats(
    size_t count, uint32_t kind, uint32_t salt, int32_t layer, int64_t position) {
  std::seed_seq seed{
      kind, salt, static_cast<uint32_t>(layer), static_cast<uint32_t>(position), uint32_t{4711}};
  std::minstd_rand random(seed);
  std::vector<float> values(count);
  for (float& value : values) {
    value = (static_cast<float>(random() % 20001u) - 10000.0f) * 2e-4f;
  }
  return values;
}

// The codecs of one worker with what they borrow. Sequences must not outlive it.
struct CodecWorker {
  explicit CodecWorker(const CodecPools& pools = {.fp8_bytes = 4 << 20,
                                                  .diffkv_bytes = 4 << 20,
                                                  .shadowkv_bytes = 8 << 20},
                       std::shared_ptr<const KvCalibration> calibration = nullptr,
                       const kernels::OpTable& ops = kernels::CpuOps(),
                       kernels::MemorySpace& memory = kernels::HostMemory()) {
    exec.memory = &memory;
    CodecContext context;
    context.calibration = std::move(calibration);
    context.full_layers = kTestFullLayers;
    context.shares_layers = true;
    context.ops = &ops;
    context.exec = exec;
    context.dimensions = {
        .layers = kTestLayers, .kv_heads = kTestKvHeads, .head_dim = kTestHeadDim};
    context.heads = kTestHeads;
    for (int32_t i = 0; i < kTestHeadDim / 2; ++i) {
      context.rope.inverse_frequencies.push_back(1.0f / static_cast<float>(1 + i * i));
    }
    context.rope.max_positions = 4096;
    codecs = *CodecSet::Create(std::move(context), pools);
  }

  // The format and the parameters that `policy` asks for.
  static KvFormatPolicy Parse(std::string_view policy) {
    return *(*ParseKvPolicy(policy)).format();
  }
  EncodedFormat& Format(std::string_view policy) const { return *codecs->Find(Parse(policy).id()); }
  // Null when the pool is full.
  std::unique_ptr<EncodedKv> Allocate(std::string_view policy,
                                      int64_t prompt_tokens,
                                      int64_t max_tokens) const {
    return Format(policy).Allocate(Parse(policy).resident, prompt_tokens, max_tokens);
  }
  WindowShape Window(std::string_view policy, int64_t prompt_tokens) const {
    return Format(policy).window(Parse(policy).resident, prompt_tokens);
  }

  kernels::ThreadPool threads{2};
  kernels::Buffer workspace{kernels::CpuOps().workspace_bytes(2, 1 << 12, 128)};
  kernels::ExecContext exec{.pool = &threads, .workspace = &workspace};
  std::unique_ptr<CodecSet> codecs;
};

// Writes random keys and values of the tokens [begin, end) of a layer to its dense pages.
inline void WriteTestTokens(const CodecWorker& worker,
                            const kernels::DensePages& pages,
                            const int32_t* page_table,
                            int32_t layer,
                            int32_t begin,
                            int32_t end,
                            uint32_t salt) {
  std::vector<float> k;
  std::vector<float> v;
  std::vector<int32_t> positions(static_cast<size_t>(end - begin));
  std::iota(positions.begin(), positions.end(), begin);
  for (const int32_t position : positions) {
    const auto key = TestFloats(kTestKvWidth, 1, salt, layer, position);
    const auto value = TestFloats(kTestKvWidth, 2, salt, layer, position);
    k.insert(k.end(), key.begin(), key.end());
    v.insert(v.end(), value.begin(), value.end());
  }
  const kernels::SequenceRows rows = {
      .row_begin = 0, .row_count = end - begin, .page_table = page_table};
  kernels::CpuOps()
      .kv_write(worker.exec,
                {.k = k.data(),
                 .k_stride = kTestKvWidth,
                 .v = v.data(),
                 .v_stride = kTestKvWidth,
                 .positions = positions.data(),
                 .sequences = &rows,
                 .num_sequences = 1,
                 .pages = pages})
      .IgnoreError();
}

// A prompt of random keys and values in dense pages whose ids are not in order.
class TestPrompt {
 public:
  // `zero_queries`: every attention is uniform.
  TestPrompt(const CodecWorker& worker, int32_t tokens, uint32_t salt, bool zero_queries = false)
      : tokens_(tokens), salt_(salt), zero_queries_(zero_queries) {
    pages_.layout = {.page_tokens = 16, .kv_heads = kTestKvHeads, .head_dim = kTestHeadDim};
    const int32_t per_layer = pages_.layout.pages_for(tokens);
    table_.resize(size_t{kTestLayers} * static_cast<size_t>(per_layer));
    std::iota(table_.rbegin(), table_.rend(), 0);
    memory_ = kernels::Buffer(table_.size() * pages_.layout.stride_bytes());
    pages_.base = memory_.data();
    for (int32_t layer = 0; layer < kTestLayers; ++layer) {
      WriteTestTokens(worker, pages_, table_.data() + layer * per_layer, layer, 0, tokens, salt);
    }
  }

  int32_t tokens() const { return tokens_; }
  WorkingKv working() const {
    return {.pages = pages_,
            .table = {.data = table_.data(),
                      .stride = pages_.layout.pages_for(tokens_),
                      .layers = kTestLayers}};
  }

  // Lets `kv` observe what it wants, at most `piece` rows a call, and encode a layer.
  absl::Status EncodeLayer(EncodedKv& kv, int32_t layer, int32_t piece = 1 << 20) const {
    for (int64_t begin = kv.first_observed(); begin < tokens_; begin += piece) {
      const auto rows = static_cast<int32_t>(std::min<int64_t>(piece, tokens_ - begin));
      BATON_RETURN_IF_ERROR(Observe(kv, layer, static_cast<int32_t>(begin), rows));
    }
    return kv.EncodeLayer(working(), layer);
  }
  absl::Status Encode(EncodedKv& kv, int32_t piece = 1 << 20) const {
    for (int32_t layer = kTestLayers - 1; layer >= 0; --layer) {
      BATON_RETURN_IF_ERROR(EncodeLayer(kv, layer, piece));
    }
    return absl::OkStatus();
  }

 private:
  absl::Status Observe(EncodedKv& kv, int32_t layer, int32_t begin, int32_t rows) const {
    std::vector<float> q;
    std::vector<int32_t> positions(static_cast<size_t>(rows));
    std::iota(positions.begin(), positions.end(), begin);
    for (const int32_t position : positions) {
      const auto query = zero_queries_ ? std::vector<float>(kTestQueryWidth)
                                       : TestFloats(kTestQueryWidth, 3, salt_, layer, position);
      q.insert(q.end(), query.begin(), query.end());
    }
    return kv.Observe(working(),
                      {.row_begin = 0,
                       .row_count = rows,
                       .positions = positions.data(),
                       .op_positions = positions.data()},
                      {.kv_layer = layer,
                       .q = q.data(),
                       .q_stride = kTestQueryWidth,
                       .heads = kTestHeads,
                       .scale = kTestScale});
  }

  int32_t tokens_;
  uint32_t salt_;
  bool zero_queries_;
  kernels::Buffer memory_;
  kernels::DensePages pages_;
  std::vector<int32_t> table_;
};

// The rows of one decode step: the token at positions[i] of sequence i, whose key, value and query
// depend on salts[i].
class TestStep {
 public:
  TestStep(const std::vector<EncodedKv*>& sequences,
           const std::vector<int32_t>& positions,
           const std::vector<uint32_t>& salts)
      : salts_(salts) {
    const size_t count = sequences.size();
    for (size_t i = 0; i < count; ++i) {
      // Rows of a tile come in any order.
      rows_.push_back({.kv = sequences[i],
                       .row = static_cast<int32_t>(count - 1 - i),
                       .position = positions[i]});
    }
    auto prepared = rows_.front().kv->codec().Prepare(rows_, arrays_);
    BATON_CHECK(prepared.ok());
    prepared_ = *std::move(prepared);
  }

  absl::Status Append(int32_t layer) const {
    const std::vector<float> k = Rows(1, layer, kTestKvWidth);
    const std::vector<float> v = Rows(2, layer, kTestKvWidth);
    return prepared_->Append(
        {.kv_layer = layer, .k = k.data(), .v = v.data(), .stride = kTestKvWidth});
  }
  // Outputs [sequences][heads x head_dim].
  absl::Status Attend(int32_t layer, float* out) const {
    const std::vector<float> q = Rows(3, layer, kTestQueryWidth);
    std::vector<float> attended(q.size());
    BATON_RETURN_IF_ERROR(prepared_->Attend({.kv_layer = layer,
                                             .q = q.data(),
                                             .q_stride = kTestQueryWidth,
                                             .heads = kTestHeads,
                                             .scale = kTestScale,
                                             .out = attended.data(),
                                             .out_stride = kTestQueryWidth}));
    for (const DecodeRow& row : rows_) {
      out = std::copy_n(attended.begin() + row.row * static_cast<ptrdiff_t>(kTestQueryWidth),
                        kTestQueryWidth,
                        out);
    }
    return absl::OkStatus();
  }

 private:
  std::vector<float> Rows(uint32_t kind, int32_t layer, size_t width) const {
    std::vector<float> rows(rows_.size() * width);
    for (size_t i = 0; i < rows_.size(); ++i) {
      const auto values = TestFloats(width, kind, salts_[i], layer, rows_[i].position);
      std::ranges::copy(values, rows.begin() + rows_[i].row * static_cast<ptrdiff_t>(width));
    }
    return rows;
  }

  const std::vector<uint32_t>& salts_;
  std::vector<DecodeRow> rows_;
  kernels::StepArrays arrays_{kernels::HostMemory()};
  std::unique_ptr<DecodeRows> prepared_;
};

// One decode step of sequences that have one codec, as a SwiftKV model runs it: the upper layers'
// keys and values are written before the first of them attends. Outputs
// [layers][sequences][heads x head_dim].
inline absl::StatusOr<std::vector<float>> DecodeStep(const std::vector<EncodedKv*>& sequences,
                                                     const std::vector<int32_t>& positions,
                                                     const std::vector<uint32_t>& salts) {
  const TestStep step(sequences, positions, salts);
  const size_t outputs = sequences.size() * kTestQueryWidth;
  std::vector<float> out(kTestLayers * outputs);
  int32_t written = 0;
  for (int32_t layer = 0; layer < kTestLayers; ++layer) {
    const int32_t end = layer < kTestFullLayers ? layer + 1 : kTestLayers;
    for (; written < end; ++written) {
      BATON_RETURN_IF_ERROR(step.Append(written));
    }
    BATON_RETURN_IF_ERROR(step.Attend(layer, out.data() + static_cast<size_t>(layer) * outputs));
  }
  return out;
}

// The next `steps` tokens of one sequence from `position` on: the outputs of every step.
inline absl::StatusOr<std::vector<float>> Decode(EncodedKv& kv,
                                                 int32_t position,
                                                 int32_t steps,
                                                 uint32_t salt) {
  std::vector<float> all;
  for (int32_t step = 0; step < steps; ++step) {
    BATON_ASSIGN_OR_RETURN(const std::vector<float> out,
                           DecodeStep({&kv}, {position + step}, {salt}));
    all.insert(all.end(), out.begin(), out.end());
  }
  return all;
}

// Makes `target` a copy of `source`, as StartDecoding and the step behind it do.
inline absl::Status CopyPrompt(const EncodedKv& source, EncodedKv& target) {
  std::vector<PageCopies> copies;
  BATON_RETURN_IF_ERROR(source.CopyTo(target, copies));
  kernels::ThreadPool threads{1};
  for (const PageCopies& pages : copies) {
    BATON_RETURN_IF_ERROR(
        kernels::CpuOps().copy_pages({.pool = &threads},
                                     {.source = pages.sources.data(),
                                      .target = pages.targets.data(),
                                      .count = static_cast<int64_t>(pages.sources.size()),
                                      .base = pages.base,
                                      .stride_bytes = static_cast<int64_t>(pages.stride_bytes)}));
  }
  return absl::OkStatus();
}

// Each page of a layer that `kv` would ship.
inline std::vector<std::span<const std::byte>> EncodedPages(const EncodedKv& kv, int32_t layer) {
  const EncodedLayer encoded = kv.LayerPages(layer);
  const size_t bytes = BytesOf(encoded.memory);
  PieceReader<const std::byte> reader(encoded.memory);
  std::vector<std::span<const std::byte>> pages;
  pages.reserve(static_cast<size_t>(encoded.pages));
  for (int32_t i = 0; i < encoded.pages; ++i) {
    pages.push_back(reader.Next(bytes / static_cast<size_t>(encoded.pages)));
  }
  return pages;
}

// Each page of where `kv` lands a prompt: [layers][pages_per_layer].
inline std::vector<std::span<std::byte>> WindowPages(EncodedKv& kv, const WindowShape& shape) {
  std::vector<std::span<std::byte>> pages;
  for (int32_t layer = 0; layer < kTestLayers; ++layer) {
    const std::vector<std::span<std::byte>> window = kv.Window(layer, shape.pages_per_layer);
    PieceReader<std::byte> reader(window);
    for (int32_t i = 0; i < shape.pages_per_layer; ++i) {
      pages.push_back(reader.Next(static_cast<size_t>(shape.page_bytes)));
    }
  }
  return pages;
}

// Writes the pages that `sender` ships to where `receiver` lands them.
inline void Ship(const EncodedKv& sender, EncodedKv& receiver, const WindowShape& shape) {
  const std::vector<std::span<std::byte>> window = WindowPages(receiver, shape);
  for (int32_t layer = 0; layer < kTestLayers; ++layer) {
    auto target = window.begin() + layer * shape.pages_per_layer;
    for (const std::span<const std::byte> page : EncodedPages(sender, layer)) {
      std::copy(page.begin(), page.end(), (target++)->begin());
    }
  }
}

// Where things are in the memory of a shadowkv policy.
inline ShadowKvMap ShadowKvTestMap(std::string_view policy, int64_t tokens) {
  const KvFormatPolicy parsed = CodecWorker::Parse(policy);
  const auto& shadowkv = std::get<ShadowKvPolicy>(parsed.resident);
  kernels::ShadowKvConfig config;
  config.rank = shadowkv.rank;
  config.chunk_tokens = shadowkv.chunk_tokens;
  config.budget_tokens = shadowkv.budget.Tokens(tokens);
  config.outlier_chunks = shadowkv.outlier_chunks;
  config.local_chunks = shadowkv.local_chunks;
  config.sink_chunks = shadowkv.sink_chunks;
  config.selector = shadowkv.selection == ShadowKvPolicy::Selection::kQ2
                        ? kernels::ShadowKvSelector::kQ2
                    : shadowkv.selection == ShadowKvPolicy::Selection::kBounds
                        ? kernels::ShadowKvSelector::kBounds
                        : kernels::ShadowKvSelector::kMean;
  config.value_clusters =
      config.selector == kernels::ShadowKvSelector::kQ2 ? ShadowKvFormat::kValueClusters : 0;
  config.value_bits = shadowkv.values == ShadowKvPolicy::ValueType::kV4 ? 4 : 16;
  config.landmark_bits = shadowkv.landmarks == ShadowKvPolicy::LandmarkType::kInt8 ? 8 : 16;
  config.int8_coefficients = shadowkv.factor == ShadowKvPolicy::FactorType::kInt8;
  config.kv_heads = kTestKvHeads;
  config.head_dim = kTestHeadDim;
  CodecContext context;
  context.dimensions = {.layers = kTestLayers, .kv_heads = kTestKvHeads, .head_dim = kTestHeadDim};
  context.full_layers = kTestFullLayers;
  return {context, config, shadowkv.joint_rank, tokens};
}
// The same of a prompt section without joint coefficients, where all layers are alike.
inline kernels::ShadowKvPromptLayout ShadowKvLayout(std::string_view policy, int64_t tokens) {
  return ShadowKvTestMap(policy, tokens).layout(0);
}

// Gives random sections of a shadowkv prompt what a receiver insists on: static ids that ascend,
// and value clusters that there are.
inline void RepairShadowKvIds(std::string_view policy, int64_t tokens, EncodedKv& kv) {
  const ShadowKvMap map = ShadowKvTestMap(policy, tokens);
  const std::vector<std::span<std::byte>> window = WindowPages(
      kv,
      {.pages_per_layer = map.most_pages(), .page_bytes = static_cast<int64_t>(map.page_bytes())});
  const auto most_pages = static_cast<size_t>(map.most_pages());
  for (int32_t layer = 0; layer < kTestLayers; ++layer) {
    const kernels::ShadowKvPromptLayout& layout = map.layout(layer);
    std::byte* section = window[static_cast<size_t>(layer) * most_pages].data();
    std::byte* next = section + layout.static_ids;
    for (int32_t head = 0; head < kTestKvHeads; ++head) {
      for (int32_t id = 0; id < layout.static_chunks; ++id, next += sizeof(id)) {
        std::memcpy(next, &id, sizeof(id));
      }
    }
    const int64_t clusters = layout.config.value_clusters;
    std::byte* cluster = section + layout.coded_begin + layout.coded.cluster_ids;
    for (int64_t i = 0; clusters > 0 && i < kTestKvHeads * layout.coded.tokens; ++i) {
      cluster[i] = static_cast<std::byte>(std::to_integer<int64_t>(cluster[i]) % clusters);
    }
  }
}

// Gives every free byte of the format's pool a value that no encoder writes.
inline void Poison(const CodecWorker& worker, std::string_view policy) {
  std::vector<std::unique_ptr<EncodedKv>> all;
  for (int64_t tokens = 1024; tokens >= 1; tokens /= 2) {
    while (auto kv = worker.Allocate(policy, tokens, 0)) {
      for (const std::span<std::byte> page : WindowPages(*kv, worker.Window(policy, tokens))) {
        std::fill(page.begin(), page.end(), std::byte{0xff});
      }
      all.push_back(std::move(kv));
    }
  }
}

}  // namespace baton::kv
