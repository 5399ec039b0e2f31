#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <utility>

#include "common/engine/operations/operations.h"

namespace baton::engine {

void DeliverProgress(EngineState& state, const ActiveRequest& request, int64_t done) {
  state.untold.emplace_back([listener = request.listener, done, total = request.prompt_tokens] {
    listener->OnPrefillProgress(done, total);
  });
}

void DeliverToken(EngineState& state,
                  const ActiveRequest& request,
                  int32_t sequence_index,
                  const std::optional<TokenOutput>& token,
                  const std::optional<SequenceFinish>& finish) {
  const bool is_stop_token = finish.has_value() && finish->stop_token_id.has_value();
  if (token.has_value() && !is_stop_token) {
    state.untold.emplace_back([listener = request.listener, sequence_index, token = *token] {
      listener->OnTokens(sequence_index, std::span<const TokenOutput>(&token, 1));
    });
  }
  if (finish.has_value()) {
    state.untold.emplace_back([listener = request.listener, sequence_index, finish = *finish] {
      listener->OnFinished(sequence_index, finish);
    });
  }
}

void DeliverDone(EngineState& state, ActiveRequest& request, const absl::Status& status) {
  state.untold.emplace_back([listener = std::exchange(request.listener, nullptr),
                             status,
                             stats = request.stats] { listener->OnDone(status, stats); });
}

void TellListeners(EngineState& state) {
  for (const std::function<void()>& tell : std::exchange(state.untold, {})) {
    tell();
  }
}

}  // namespace baton::engine
