// What comes back to the host of a step whose tokens are drawn greedily.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "kernels/core/memory.h"
#include "tests/gpu/bench/model_loaded.h"

namespace baton::model {

// The most likely next token of each sequence of a step. Only on a device. Not thread-safe.
class ModelNextTokens {
 public:
  // For steps with `count` logit rows. Borrows the model.
  static absl::StatusOr<ModelNextTokens> Create(const LoadedModel& loaded, int32_t count);

  // Of the logits of the model's last Forward; waits until the ids are there.
  absl::Status Fetch();
  // [count]; zeros before the first Fetch, -1 where all logits were NaN.
  std::span<const int32_t> ids() const { return ids_; }

 private:
  ModelNextTokens(const LoadedModel& loaded, int32_t count, kernels::Memory top);

  const LoadedModel& loaded_;
  kernels::Memory top_;  // [count] ids, values and log-sums
  std::vector<int32_t> ids_;
};

}  // namespace baton::model
