// Calls functions at given times, from one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <thread>
#include <unordered_map>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace baton::router {

// Deadlines, lease renewals and reconnections. Functions must not block. Thread-safe.
class TimerQueue {
 public:
  using Id = uint64_t;  // never 0

  TimerQueue();
  // Stops; functions that are not due are dropped.
  ~TimerQueue();
  TimerQueue(const TimerQueue&) = delete;
  TimerQueue& operator=(const TimerQueue&) = delete;

  // Calls `function` once at `time` or soon after. It should hold what it needs weakly.
  Id At(absl::Time time, std::function<void()> function);
  Id After(absl::Duration delay, std::function<void()> function);
  // Drops a timer; one that is running or has run is not affected. Id 0 is ignored.
  void Cancel(Id id);
  // Stops the thread. Later timers never run.
  void Stop();

 private:
  using Key = std::pair<absl::Time, Id>;

  void Run();

  absl::Mutex mutex_;
  std::map<Key, std::function<void()>> timers_ ABSL_GUARDED_BY(mutex_);
  std::unordered_map<Id, absl::Time> times_ ABSL_GUARDED_BY(mutex_);
  Id last_id_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  absl::CondVar changed_;
  std::thread thread_;
};

}  // namespace baton::router
