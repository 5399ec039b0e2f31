#include "services/loadtest/stream/timer_queue.h"

#include <functional>
#include <utility>

#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

#include "services/loadtest/stream/run_clock.h"

namespace baton::loadtest {

TimerQueue::TimerQueue(const RunClock* clock) : clock_(clock), thread_([this] { Work(); }) {}

TimerQueue::~TimerQueue() {
  {
    absl::MutexLock lock(&mutex_);
    stop_ = true;
    changed_.Signal();
  }
  thread_.join();
}

void TimerQueue::Call(absl::Duration at, std::function<void()> function) {
  absl::MutexLock lock(&mutex_);
  waiting_.emplace(Key(at, next_++), std::move(function));
  changed_.Signal();
}

void TimerQueue::Work() {
  absl::MutexLock lock(&mutex_);
  while (!stop_) {
    const absl::Duration now = clock_->Elapsed();
    if (waiting_.empty()) {
      changed_.Wait(&mutex_);
    } else if (const absl::Duration at = waiting_.begin()->first.first; at > now) {
      changed_.WaitWithTimeout(&mutex_, at - now);
    } else {
      const auto due = waiting_.extract(waiting_.begin());
      mutex_.Unlock();
      due.mapped()();
      mutex_.Lock();
    }
  }
}

}  // namespace baton::loadtest
