// Calls out of a locked object, in order and without its lock.
#pragma once

#include <deque>
#include <functional>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace baton::handoff {

// Add is called with the owner's lock held and only queues; Run is called without it and makes the
// queued calls one at a time, in the order of Add, on whichever thread gets there first. A call may
// re-enter the owner: what it adds is made after it. Thread-safe.
class SerialCalls {
 public:
  void Add(std::function<void()> call);
  void Run();

 private:
  absl::Mutex mutex_;
  std::deque<std::function<void()>> calls_ ABSL_GUARDED_BY(mutex_);
  bool running_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace baton::handoff
