#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

#include "common/engine/operations/operations.h"

namespace baton::engine {
namespace {

void ExpireDeadlines(EngineState& state, absl::Time now) {
  std::vector<ActiveRequest*> expired;
  for (const auto& [id, request] : state.requests) {
    if (request->deadline <= now) {
      expired.push_back(request.get());
    }
  }
  for (ActiveRequest* request : expired) {
    EndRequest(state,
               *request,
               absl::DeadlineExceededError(absl::StrCat("deadline passed, phase=",
                                                        std::string(PhaseName(request->phase)))));
  }
}

void ExpireLeases(EngineState& state, absl::Time now) {
  for (const uint64_t id : state.reservations.Expired(now)) {
    EndRequest(state,
               *state.reserved.at(id),
               absl::UnavailableError(
                   absl::StrCat("lease expired: no sign of life of the reservation's owner for ",
                                absl::FormatDuration(state.reservations.lease()))));
    if (state.parts.observer != nullptr) {
      state.parts.observer->OnLeaseExpired();
    }
  }
}

}  // namespace

void ExpireRequests(EngineState& state) {
  const absl::Time now = state.Now();
  ExpireDeadlines(state, now);
  ExpireLeases(state, now);
}

absl::Time NextExpiry(const EngineState& state) {
  absl::Time next = state.reservations.NextExpiry();
  for (const auto& [id, request] : state.requests) {
    next = std::min(next, request->deadline);
  }
  return next;
}

}  // namespace baton::engine
