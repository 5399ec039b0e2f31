// A reservation asked for and waited for.
#pragma once

#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/notification.h"

#include "common/engine/engine.h"
#include "common/engine/request.h"

namespace baton::engine {

// Blocks until `engine` has granted or refused.
inline absl::StatusOr<ReservationGrant> AwaitGrant(Engine& engine,
                                                   ReserveRequest request,
                                                   std::shared_ptr<RequestListener> listener) {
  absl::StatusOr<ReservationGrant> grant = absl::UnknownError("no answer");
  absl::Notification answered;
  absl::Status status = engine.Reserve(
      std::move(request), std::move(listener), [&](absl::StatusOr<ReservationGrant> answer) {
        grant = std::move(answer);
        answered.Notify();
      });
  if (!status.ok()) {
    return status;
  }
  answered.WaitForNotification();
  return grant;
}

}  // namespace baton::engine
