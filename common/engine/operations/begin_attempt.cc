#include <utility>
#include <vector>

#include "absl/status/status.h"

#include "common/base/check.h"
#include "common/engine/operations/operations.h"

namespace baton::engine {

void BeginAttempt(EngineState& state,
                  const kv::ReservationKey& key,
                  uint32_t attempt,
                  Engine::StatusCallback done) {
  if (absl::Status status = state.reservations.BeginAttempt(key, attempt, state.Now());
      !status.ok()) {
    done(std::move(status));
    return;
  }
  const auto entry = state.reserved.find(key.reservation_id);
  BATON_CHECK(entry != state.reserved.end());
  ActiveRequest& request = *entry->second;
  AnswerAttempt(request, absl::FailedPreconditionError("a newer attempt has begun"));
  // What an older attempt has landed may be half of a page. A device may still read it for a step
  // that has ended; whatever it makes of it, what is made anew comes behind.
  std::erase(state.expanding, &request);
  request.moved_pages.clear();
  request.hidden_tokens = 0;
  request.expanded_tokens = 0;
  request.accept_attempt = std::move(done);
  if (request.steps_in_flight == 0) {
    AnswerAttempt(request, absl::OkStatus());
  }
}

void AnswerAttempt(ActiveRequest& request, const absl::Status& status) {
  if (auto answer = std::exchange(request.accept_attempt, nullptr); answer != nullptr) {
    answer(status);
  }
}

}  // namespace baton::engine
