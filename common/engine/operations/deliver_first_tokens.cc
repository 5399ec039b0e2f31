#include <cstddef>
#include <cstdint>
#include <span>

#include "common/engine/operations/operations.h"

namespace baton::engine {

void DeliverFirstTokens(EngineState& state,
                        ActiveRequest& request,
                        std::span<const TokenOutput> tokens,
                        absl::Time drawn) {
  if (request.ended() || !request.delivered.empty()) {
    return;
  }
  request.first_tokens_delivered = true;
  request.first_token_time = drawn;
  DeliverProgress(state, request, request.prompt_tokens);
  for (size_t i = 0; i < tokens.size(); ++i) {
    DeliverToken(state,
                 request,
                 static_cast<int32_t>(i),
                 tokens[i],
                 FinishedBy(request.sampling, 1, tokens[i].token_id));
  }
}

}  // namespace baton::engine
