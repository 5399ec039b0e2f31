// Decode steps over any format of keys and values.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "common/kv/codec/step_kv.h"
#include "common/model/forward.h"
#include "tests/gpu/bench/model_loaded.h"
#include "tests/gpu/bench/model_next_tokens.h"

namespace baton::model {

// Sequences that grow by a token each in every step; row s of a step is sequence s, whose keys and
// values a kv::StepKv holds. Only on a device. Not thread-safe.
class ModelDecodeSteps {
 public:
  // `positions`: of the first step's tokens, by sequence. Borrows the model.
  static absl::StatusOr<ModelDecodeSteps> Create(const LoadedModel& loaded,
                                                 std::vector<int32_t> positions);

  // One step with these tokens, [count]. `logits`, [count][vocab], may be empty: then the step has
  // none, and the call returns before the device's work is done.
  absl::Status Run(std::span<const int32_t> token_ids, kv::StepKv& kv, std::span<float> logits);
  // One step with the most likely tokens of the call before, token 0 in the first, until the next
  // ones are on the host, as the engine asks for a greedy draw. kInvalidArgument in a step after
  // one whose logits were all NaN.
  absl::Status NextTokens(kv::StepKv& kv);

 private:
  ModelDecodeSteps(const LoadedModel& loaded, std::vector<int32_t> positions, ModelNextTokens next);
  absl::Status Forward(std::span<const int32_t> token_ids,
                       kv::StepKv& kv,
                       bool wants_logits,
                       std::span<float> logits);

  const LoadedModel& loaded_;
  std::vector<int32_t> positions_;
  std::vector<SequenceSlice> sequences_;
  std::vector<int32_t> rows_;  // all of them, ascending
  ModelNextTokens next_;
};

}  // namespace baton::model
