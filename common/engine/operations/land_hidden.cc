#include <algorithm>
#include <cstdint>

#include "common/base/check.h"
#include "common/engine/operations/operations.h"
#include "common/kv/codec/hidden/hidden_state.h"

namespace baton::engine {

void LandHidden(EngineState& state,
                const kv::ReservationKey& key,
                uint32_t attempt,
                int32_t pages) {
  if (!state.reservations.CheckAttempt(key, attempt, state.Now()).ok()) {
    return;
  }
  const auto entry = state.reserved.find(key.reservation_id);
  BATON_CHECK(entry != state.reserved.end());
  ActiveRequest& request = *entry->second;
  if (request.sequences.front().hidden == nullptr || request.accept_attempt != nullptr) {
    return;
  }
  request.hidden_tokens =
      std::min(request.prompt_tokens, int64_t{pages} * kv::HiddenShape::kPageTokens);
  AwaitExpansion(state, request);
}

}  // namespace baton::engine
