#include "common/engine/operations/operations.h"

namespace baton::engine {

void DeliverToken(ActiveRequest& request,
                  int32_t sequence_index,
                  const TokenOutput& token,
                  const std::optional<SequenceFinish>& finish) {
  const bool is_stop_token = finish.has_value() && finish->stop_token_id.has_value();
  if (!is_stop_token) {
    request.listener->OnTokens(sequence_index, std::span<const TokenOutput>(&token, 1));
  }
  if (finish.has_value()) {
    request.listener->OnFinished(sequence_index, *finish);
  }
}

}  // namespace baton::engine
