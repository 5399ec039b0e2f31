#include "common/engine/operations/operations.h"

namespace baton::engine {

absl::Status CancelStatus(const absl::Status& reason) {
  return reason.ok() ? absl::CancelledError("request cancelled") : reason;
}

void CancelRequest(EngineState& state,
                   std::string_view request_id,
                   uint64_t serial,
                   const absl::Status& reason) {
  const auto entry = state.requests.find(absl::string_view(request_id.data(), request_id.size()));
  if (entry != state.requests.end() && entry->second->serial == serial) {
    EndRequest(state, *entry->second, CancelStatus(reason));
  }
}

}  // namespace baton::engine
