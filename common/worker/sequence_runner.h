// One sequence through a model, without an engine.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

#include "common/checkpoint/checkpoint.h"
#include "common/model/model.h"
#include "kernels/backend.h"
#include "kernels/core/dtype.h"
#include "kernels/core/memory.h"
#include "kernels/ops/params.h"

namespace baton::worker {

// Owns model, threads and the KV pages of one sequence of at most `max_tokens`. Every token runs
// through every layer, so that every position has logits. Not thread-safe.
class SequenceRunner {
 public:
  // Prompt tokens of one step.
  static constexpr int32_t kStepRows = 512;

  // `dtype` is that of weights and pages; `device` as SelectOps takes it.
  static absl::StatusOr<std::unique_ptr<SequenceRunner>> Create(
      const checkpoint::Checkpoint& checkpoint,
      std::string_view device,
      int threads,
      kernels::DType dtype,
      int64_t max_tokens);

  // Appends tokens; `logits` receives [token_ids.size(), vocab]. kInvalidArgument when they exceed
  // max_tokens or the vocabulary.
  absl::Status Append(std::span<const int32_t> token_ids, std::span<float> logits);

  const checkpoint::ModelConfig& config() const { return model_->config(); }

 private:
  explicit SequenceRunner(int64_t max_tokens) : max_tokens_(max_tokens) {}
  absl::Status Step(std::span<const int32_t> token_ids, std::span<float> logits);

  std::unique_ptr<kernels::Backend> backend_;
  std::unique_ptr<model::Model> model_;
  int64_t max_tokens_;
  int64_t num_tokens_ = 0;
  kernels::Memory page_memory_;
  kernels::DensePages pages_;
  std::vector<int32_t> page_table_;  // [layers][pages per layer]
};

}  // namespace baton::worker
