// Things to do later, on one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

#include "services/loadtest/stream/run_clock.h"

namespace baton::loadtest {

// Calls functions at times of a clock, in order. They must not block. The destructor drops what is
// not yet due. Thread-safe.
class TimerQueue {
 public:
  // `clock` is borrowed.
  explicit TimerQueue(const RunClock* clock);
  ~TimerQueue();
  TimerQueue(const TimerQueue&) = delete;
  TimerQueue& operator=(const TimerQueue&) = delete;

  void Call(absl::Duration at, std::function<void()> function);

 private:
  // Due time and a number that keeps the order of equal times.
  using Key = std::pair<absl::Duration, uint64_t>;

  void Work();

  const RunClock* const clock_;
  absl::Mutex mutex_;
  absl::CondVar changed_;
  std::map<Key, std::function<void()>> waiting_ ABSL_GUARDED_BY(mutex_);
  uint64_t next_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace baton::loadtest
