#include "absl/status/status.h"

#include "common/engine/operations/operations.h"

namespace baton::engine {

void FinishCopies(EngineState& state, ActiveRequest& request, const absl::Status& status) {
  --request.copies_in_flight;
  if (request.ended()) {
    return;
  }
  if (!status.ok()) {
    EndRequest(state, request, absl::InternalError(status.message()));
  } else if (request.phase == Phase::kHandingOff) {
    CommitShipped(state, request);
  } else if (request.phase == Phase::kLanding && request.copies_in_flight == 0) {
    request.sequences.front().staged = nullptr;  // no step takes anything from there any more
    FinishLanding(state, request);
  }
}

}  // namespace baton::engine
