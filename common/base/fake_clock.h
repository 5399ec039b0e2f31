// A clock that stands still until a test moves it.
#pragma once

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

#include "common/base/clock.h"

namespace baton {

// For tests. Waiters look at the time again every millisecond of real time, so Advance reaches them
// without knowing them. Thread-safe.
class FakeClock final : public Clock {
 public:
  explicit FakeClock(absl::Time now = absl::FromUnixSeconds(1'700'000'000)) : now_(now) {}

  absl::Time Now() const override {
    absl::MutexLock lock(&mutex_);
    return now_;
  }
  void WaitUntil(absl::Mutex& mutex, absl::CondVar& condition, absl::Time deadline) const override {
    if (Now() < deadline) {
      condition.WaitWithTimeout(&mutex, absl::Milliseconds(1));
    }
  }
  void Advance(absl::Duration duration) {
    absl::MutexLock lock(&mutex_);
    now_ += duration;
  }

 private:
  mutable absl::Mutex mutex_;
  absl::Time now_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace baton
