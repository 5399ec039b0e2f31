#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"

#include "common/base/check.h"
#include "common/engine/operations/operations.h"

namespace baton::engine {
namespace {

void LeavePhase(EngineState& state, ActiveRequest& request) {
  const auto is_this = [&](const auto& entry) { return entry.request == &request; };
  std::erase(state.expanding, &request);
  switch (std::exchange(request.phase, Phase::kEnded)) {
    case Phase::kQueued:
      std::erase(state.waiting, &request);
      state.parts.gate->LeaveQueue(request.prompt_tokens);
      return;
    case Phase::kPrefilling:
      std::erase(state.prefilling, &request);
      return;
    case Phase::kReserved:
      ReleaseReservation(state, request);
      AnswerAttempt(request, absl::FailedPreconditionError("the reservation has ended"));
      return;
    case Phase::kLanding:
      std::erase_if(state.pending_landings, is_this);
      return;
    case Phase::kDecoding:
      std::erase_if(state.decoding, is_this);
      std::erase_if(state.pending_copies, is_this);
      return;
    case Phase::kHandingOff:
    case Phase::kExpanding:
      return;
    case Phase::kEnded:
      break;
  }
  BATON_CHECK(false && "a request ends once");
}

void FillTimes(absl::Time now, ActiveRequest& request) {
  if (request.decode_started != absl::InfiniteFuture()) {
    request.stats.decode_time = now - request.decode_started;
  }
}

}  // namespace

void EndRequest(EngineState& state, ActiveRequest& request, const absl::Status& status) {
  LeavePhase(state, request);
  state.running_slots -= std::exchange(request.running_slots, 0);
  request.end_status = status;
  FillTimes(state.Now(), request);
  auto node = state.requests.extract(request.id);
  BATON_CHECK(!node.empty());
  state.closing.push_back(std::move(node.mapped()));
  state.parts.gate->Leave(request.id);
  DeliverDone(state, request, status);
}

void EndAllRequests(EngineState& state, const absl::Status& status) {
  while (!state.requests.empty()) {
    EndRequest(state, *state.requests.begin()->second, status);
  }
}

}  // namespace baton::engine
