#include "common/engine/sequence.h"

#include <algorithm>
#include <optional>

#include "common/engine/request.h"
#include "common/engine/sampling/penalty_state.h"
#include "common/engine/sampling_params.h"

namespace baton::engine {

std::optional<SequenceFinish> FinishedBy(const SamplingParams& params,
                                         int32_t generated_tokens,
                                         int32_t token) {
  const auto& stop = params.stop_token_ids;
  if (std::find(stop.begin(), stop.end(), token) != stop.end()) {
    return SequenceFinish{.reason = FinishReason::kStop, .stop_token_id = token};
  }
  if (generated_tokens >= params.max_tokens) {
    return SequenceFinish{.reason = FinishReason::kLength, .stop_token_id = std::nullopt};
  }
  return std::nullopt;
}

std::optional<SequenceFinish> AcceptToken(const SamplingParams& params,
                                          int32_t token,
                                          Sequence& sequence) {
  sequence.next_token = token;
  sequence.generated.push_back(token);
  if (HasPenalties(params)) {
    sequence.penalties.Record(token);
  }
  std::optional<SequenceFinish> finish = FinishedBy(params, sequence.generated_tokens(), token);
  sequence.finished = finish.has_value();
  return finish;
}

}  // namespace baton::engine
