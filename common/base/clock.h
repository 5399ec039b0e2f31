// The clock as an argument, so that deadlines and leases can be tested without waiting for them.
#pragma once

#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace baton {

// Thread-safe.
class Clock {
 public:
  virtual ~Clock() = default;

  virtual absl::Time Now() const = 0;
  // Waits on `condition` with `mutex` held by the caller (released while waiting, held again on
  // return) until it is signalled or `deadline` has passed on this clock. May return early; callers
  // look at their condition again.
  virtual void WaitUntil(absl::Mutex& mutex,
                         absl::CondVar& condition,
                         absl::Time deadline) const = 0;

  // The machine's clock; lives as long as the process.
  static const Clock& Real();
};

}  // namespace baton
