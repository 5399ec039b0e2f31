#include <algorithm>
#include <cstdint>

#include "common/engine/operations/operations.h"
#include "common/kv/codec/hidden/hidden_state.h"

namespace baton::engine {

void LandHidden(EngineState& state,
                const kv::ReservationKey& key,
                uint32_t attempt,
                int32_t pages) {
  ActiveRequest* const request = FindLanding(state, key, attempt);
  if (request == nullptr || request->sequences.front().hidden == nullptr) {
    return;
  }
  request->hidden_tokens =
      std::min(request->prompt_tokens, int64_t{pages} * kv::HiddenShape::kPageTokens);
  AwaitExpansion(state, *request);
}

}  // namespace baton::engine
