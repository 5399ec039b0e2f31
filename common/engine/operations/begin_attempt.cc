#include "common/engine/operations/operations.h"

namespace baton::engine {

absl::Status BeginAttempt(EngineState& state, const kv::ReservationKey& key, uint32_t attempt) {
  return state.reservations.BeginAttempt(key, attempt, state.Now());
}

}  // namespace baton::engine
