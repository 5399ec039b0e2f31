#include "absl/status/status.h"

#include "common/engine/operations/operations.h"
#include "common/engine/request_checks.h"

namespace baton::engine {
namespace {

absl::Status CheckStaged(const EngineState& state, const ActiveRequest& request) {
  return ShipsInPlace(state, request)
             ? absl::OkStatus()
             : CheckStaging(state.parts.limits, request.kv, request.prompt_tokens);
}

bool Admit(EngineState& state, ActiveRequest& request) {
  const bool generates = state.parts.options.role != Role::kPrefill;
  const int32_t slots = generates ? request.sampling.n : 1;
  if (state.running_slots + slots > state.parts.options.max_running_sequences) {
    return false;
  }
  if (!TakeMemory(state, {.prefills = true, .generates = generates}, request)) {
    return false;
  }
  request.running_slots = slots;
  state.running_slots += slots;
  request.phase = Phase::kPrefilling;
  return true;
}

}  // namespace

void AdmitWaiting(EngineState& state) {
  while (!state.waiting.empty()) {
    ActiveRequest& request = *state.waiting.front();
    if (const absl::Status status = CheckStaged(state, request); !status.ok()) {
      EndRequest(state, request, status);
      continue;
    }
    if (!Admit(state, request)) {
      return;
    }
    state.waiting.pop_front();
    state.prefilling.push_back(&request);
    state.parts.gate->LeaveQueue(request.prompt_tokens);
  }
}

}  // namespace baton::engine
