#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "common/engine/operations/operations.h"

namespace baton::engine {
namespace {

// Tokens of the next step.
int64_t Expandable(const EngineState& state, const ActiveRequest& request) {
  const EngineOptions& options = state.parts.options;
  const int64_t chunk = std::min(options.step_token_budget, options.prefill_chunk_tokens);
  const int64_t rest = request.prompt_tokens - request.expanded_tokens;
  if (request.phase == Phase::kExpanding) {
    return std::min(rest, chunk);
  }
  // Before the commit whole chunks, so that results do not depend on when bytes come, and not the
  // prompt's last tokens, with which the upper layers are encoded.
  const bool landed = request.hidden_tokens - request.expanded_tokens >= chunk;
  return request.phase == Phase::kReserved && landed && rest > chunk ? chunk : 0;
}

}  // namespace

// The first one that is committed, whose client waits; else the first of which enough has landed.
StepExpansion NextExpansion(const EngineState& state) {
  StepExpansion next;
  for (ActiveRequest* request : state.expanding) {
    const int64_t tokens = Expandable(state, *request);
    const bool landing = request->phase == Phase::kReserved;
    if (tokens == 0 || (landing && next.request != nullptr)) {
      continue;
    }
    next = {.request = request,
            .sequence = &request->sequences.front(),
            .token_begin = request->expanded_tokens,
            .token_count = static_cast<int32_t>(tokens),
            .landing = landing,
            .completes_prompt = request->expanded_tokens + tokens == request->prompt_tokens};
    if (!landing) {
      break;
    }
  }
  return next;
}

void AwaitExpansion(EngineState& state, ActiveRequest& request) {
  if (std::ranges::find(state.expanding, &request) == state.expanding.end()) {
    state.expanding.push_back(&request);
  }
}

void StartExpansion(EngineState& state, ActiveRequest& request) {
  request.phase = Phase::kExpanding;
  AwaitExpansion(state, request);
}

void FinishExpansion(EngineState& state, ActiveRequest& request) {
  std::erase(state.expanding, &request);
  request.sequences.front().hidden.reset();
  const std::vector<TokenOutput> first_tokens = std::move(request.first_tokens);
  StartDecoding(state, request, first_tokens, /*deliver=*/false);
}

}  // namespace baton::engine
