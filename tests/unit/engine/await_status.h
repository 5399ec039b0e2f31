// The answer of an engine to something asked of it.
#pragma once

#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/synchronization/notification.h"

#include "common/engine/engine.h"

namespace baton::engine {

// Blocks until what `ask` was given is called, and returns what it was called with.
inline absl::Status AwaitStatus(absl::FunctionRef<void(Engine::StatusCallback)> ask) {
  absl::Status result;
  absl::Notification answered;
  ask([&](absl::Status status) {
    result = std::move(status);
    answered.Notify();
  });
  answered.WaitForNotification();
  return result;
}

}  // namespace baton::engine
