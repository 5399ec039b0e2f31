#include <utility>
#include <vector>

#include "common/engine/operations/operations.h"

namespace baton::engine {

void StartExpansion(EngineState& state, ActiveRequest& request) {
  request.phase = Phase::kExpanding;
  state.expanding.push_back(&request);
}

void FinishExpansion(EngineState& state, ActiveRequest& request) {
  std::erase(state.expanding, &request);
  request.sequences.front().hidden.reset();
  const std::vector<TokenOutput> first_tokens = std::move(request.first_tokens);
  StartDecoding(state, request, first_tokens, /*deliver=*/false);
}

}  // namespace baton::engine
