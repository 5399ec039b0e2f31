// How many of something live.
#pragma once

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace baton {

// Counts objects that live, so that what they share can be torn down after the last one.
// Thread-safe.
class LiveCounter {
 public:
  // Counts one while it lives.
  class Count {
   public:
    explicit Count(LiveCounter* counter) : counter_(counter) { counter_->Add(1); }
    ~Count() { counter_->Add(-1); }
    Count(const Count&) = delete;
    Count& operator=(const Count&) = delete;

   private:
    LiveCounter* const counter_;
  };

  // False when some are left after `timeout`.
  bool WaitForNone(absl::Duration timeout) {
    absl::MutexLock lock(&mutex_);
    const auto none = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return count_ == 0; };
    return mutex_.AwaitWithTimeout(absl::Condition(&none), timeout);
  }

 private:
  void Add(int count) {
    absl::MutexLock lock(&mutex_);
    count_ += count;
  }

  absl::Mutex mutex_;
  int count_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace baton
