#include "common/engine/operations/operations.h"

namespace baton::engine {

absl::Status RenewLease(EngineState& state, const kv::ReservationKey& key) {
  return state.reservations.Renew(key, state.Now());
}

}  // namespace baton::engine
