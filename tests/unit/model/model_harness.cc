#include "tests/unit/model/model_harness.h"

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <numeric>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

#include "common/checkpoint/checkpoint.h"
#include "common/kv/codec/dense_step_kv.h"
#include "common/model/forward.h"
#include "common/model/model.h"
#include "kernels/core/dtype.h"
#include "kernels/core/exec_context.h"
#include "kernels/core/half.h"
#include "kernels/ops/op_table.h"
#include "kernels/ops/params.h"

namespace baton::model {

namespace {

// Dense pages, and a report of the layers that are written.
class ReportingStepKv : public kv::DenseStepKv {
 public:
  ReportingStepKv(const kernels::OpTable& ops,
                  const kernels::ExecContext& exec,
                  const kernels::DensePages& pages,
                  std::span<const kv::DenseTable> tables,
                  const std::function<void(int32_t, int32_t)>& written)
      : DenseStepKv(ops, exec, pages, tables), written_(written) {}

  absl::Status LayersWritten(int32_t layer_begin, int32_t layer_end) override {
    if (written_) {
      written_(layer_begin, layer_end);
    }
    return absl::OkStatus();
  }

 private:
  const std::function<void(int32_t, int32_t)>& written_;
};

}  // namespace

ModelHarness::ModelHarness(const checkpoint::Checkpoint& checkpoint,
                           const kernels::OpTable& ops,
                           const HarnessOptions& options)
    : pool_(options.threads),
      exec_({.pool = &pool_,
             .workspace = &workspace_,
             .queue = options.queue,
             .memory = options.memory}),
      ops_(ops),
      max_tokens_(options.max_tokens),
      lengths_(static_cast<size_t>(options.max_sequences), 0) {
  auto model = Model::Load(checkpoint,
                           ops,
                           exec_,
                           {.max_step_rows = options.max_step_rows,
                            .max_logit_rows = options.max_step_rows,
                            .weight_dtype = options.dtype});
  if (!model.ok()) {
    ADD_FAILURE() << model.status();
    std::abort();
  }
  model_ = *std::move(model);
  const KvShape shape = model_->kv_shape();
  pages_.layout = {.page_tokens = options.page_tokens,
                   .kv_heads = shape.kv_heads,
                   .head_dim = shape.head_dim,
                   .dtype = options.dtype};
  const auto per_sequence =
      static_cast<size_t>(shape.layers * pages_.layout.pages_for(max_tokens_));
  const size_t total = per_sequence * lengths_.size();
  page_memory_ = exec_.memory->Allocate(total * pages_.layout.stride_bytes()).value();
  pages_.base = page_memory_.data();
  std::vector<int32_t> ids(total);
  std::iota(ids.begin(), ids.end(), 0);
  std::shuffle(ids.begin(), ids.end(), std::mt19937(17));
  for (size_t s = 0; s < lengths_.size(); ++s) {
    const auto begin = ids.begin() + static_cast<ptrdiff_t>(s * per_sequence);
    page_tables_.emplace_back(begin, begin + static_cast<ptrdiff_t>(per_sequence));
  }
}

std::vector<float> ModelHarness::Step(const std::vector<StepPart>& parts) {
  std::vector<int32_t> tokens, positions, survivors, logit_rows;
  std::vector<SequenceSlice> sequences;
  std::vector<kv::DenseTable> tables;
  for (const StepPart& part : parts) {
    const auto s = static_cast<size_t>(part.sequence);
    const auto row_begin = static_cast<int32_t>(tokens.size());
    for (int token : part.tokens) {
      tokens.push_back(token);
      positions.push_back(lengths_[s]++);
    }
    for (const int32_t offset : part.survivors) {
      survivors.push_back(row_begin + offset);
    }
    for (const int32_t offset : part.logits) {
      logit_rows.push_back(row_begin + offset);
    }
    sequences.push_back({row_begin, static_cast<int32_t>(part.tokens.size())});
    tables.push_back({.data = page_tables_[s].data(),
                      .stride = pages_.layout.pages_for(max_tokens_),
                      .layers = model_->kv_shape().layers});
  }
  ForwardBatch batch;
  batch.token_ids = tokens;
  batch.positions = positions;
  batch.sequences = sequences;
  batch.survivors = survivors;
  batch.logit_rows = logit_rows;
  ReportingStepKv kv(ops_, exec_, pages_, tables, on_kv_layers_written);
  batch.kv = &kv;
  batch.on_hidden = on_hidden;
  std::vector<float> logits(logit_rows.size() * static_cast<size_t>(model_->config().vocab_size));
  const absl::Status status = model_->Forward(batch, logits);
  EXPECT_TRUE(status.ok()) << status;
  return logits;
}

std::vector<float> ModelHarness::Prefill(int32_t sequence,
                                         std::span<const int32_t> tokens,
                                         int32_t chunk) {
  std::vector<float> logits;
  for (size_t begin = 0; begin < tokens.size(); begin += static_cast<size_t>(chunk)) {
    const size_t count = std::min(static_cast<size_t>(chunk), tokens.size() - begin);
    StepPart part;
    part.sequence = sequence;
    part.tokens.assign(tokens.begin() + static_cast<ptrdiff_t>(begin),
                       tokens.begin() + static_cast<ptrdiff_t>(begin + count));
    if (begin + count == tokens.size()) {
      part.survivors = part.logits = {static_cast<int32_t>(count) - 1};
    }
    logits = Step({part});
  }
  return logits;
}

std::vector<int32_t> ModelHarness::Greedy(int32_t sequence,
                                          std::vector<float> logits,
                                          int32_t count) {
  std::vector<int32_t> ids;
  while (static_cast<int32_t>(ids.size()) < count) {
    ids.push_back(MostLikely(logits));
    if (static_cast<int32_t>(ids.size()) < count) {
      logits = Step({{sequence, {ids.back()}, {0}, {0}}});
    }
  }
  return ids;
}

std::vector<float> ModelHarness::Cached(int32_t sequence, int32_t kv_layer, bool values) const {
  const kernels::DensePageLayout& layout = pages_.layout;
  const auto s = static_cast<size_t>(sequence);
  const int32_t* table =
      page_tables_[s].data() + static_cast<ptrdiff_t>(kv_layer) * layout.pages_for(max_tokens_);
  std::vector<float> cached;
  std::vector<std::byte> pool(page_memory_.size());
  EXPECT_TRUE(exec_.memory->Download(pool.data(), page_memory_.data(), pool.size()).ok());
  for (int32_t p = 0; p < lengths_[s]; ++p) {
    const std::byte* page =
        pool.data() + static_cast<size_t>(table[p / layout.page_tokens]) * layout.stride_bytes();
    for (int32_t head = 0; head < layout.kv_heads; ++head) {
      const int32_t slot = p % layout.page_tokens;
      const std::byte* element =
          page + (values ? layout.value_offset(head, slot) : layout.key_offset(head, slot));
      for (int32_t i = 0; i < layout.head_dim; ++i) {
        cached.push_back(layout.dtype == kernels::DType::kF32
                             ? reinterpret_cast<const float*>(element)[i]
                             : kernels::BF16ToF32(reinterpret_cast<const uint16_t*>(element)[i]));
      }
    }
  }
  return cached;
}

std::vector<float> ModelHarness::AllCached(int32_t sequence) const {
  std::vector<float> all;
  for (int32_t layer = 0; layer < model_->kv_shape().layers; ++layer) {
    for (const bool values : {false, true}) {
      const std::vector<float> cached = Cached(sequence, layer, values);
      all.insert(all.end(), cached.begin(), cached.end());
    }
  }
  return all;
}

int32_t MostLikely(std::span<const float> logits) {
  return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

std::vector<int32_t> RandomTokens(uint32_t seed, size_t count, int32_t vocab) {
  std::mt19937 generator(seed);
  std::vector<int32_t> tokens(count);
  for (int32_t& token : tokens) {
    token = static_cast<int32_t>(generator() % static_cast<uint32_t>(vocab));
  }
  return tokens;
}

}  // namespace baton::model
