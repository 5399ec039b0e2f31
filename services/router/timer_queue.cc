#include "services/router/timer_queue.h"

#include <utility>

#include "absl/time/clock.h"

#include "common/base/check.h"

namespace baton::router {

TimerQueue::TimerQueue() : thread_([this] { Run(); }) {}

TimerQueue::~TimerQueue() {
  // The last owner may be a function of the timer thread itself; then Stop has been called before.
  BATON_CHECK(!thread_.joinable() || thread_.get_id() != std::this_thread::get_id());
  Stop();
}

void TimerQueue::Stop() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    changed_.Signal();
  }
  if (thread_.joinable()) {
    thread_.join();
  }
}

TimerQueue::Id TimerQueue::At(absl::Time time, std::function<void()> function) {
  absl::MutexLock lock(&mutex_);
  const Id id = ++last_id_;
  timers_.emplace(Key{time, id}, std::move(function));
  times_.emplace(id, time);
  if (timers_.begin()->first.second == id) {
    changed_.Signal();
  }
  return id;
}

TimerQueue::Id TimerQueue::After(absl::Duration delay, std::function<void()> function) {
  return At(absl::Now() + delay, std::move(function));
}

void TimerQueue::Cancel(Id id) {
  std::function<void()> dropped;  // destroyed without the lock
  absl::MutexLock lock(&mutex_);
  const auto time = times_.find(id);
  if (time == times_.end()) {
    return;
  }
  const auto timer = timers_.find(Key{time->second, id});
  dropped = std::move(timer->second);
  timers_.erase(timer);
  times_.erase(time);
}

void TimerQueue::Run() {
  while (true) {
    std::function<void()> function;
    {
      absl::MutexLock lock(&mutex_);
      while (!stopping_ && (timers_.empty() || timers_.begin()->first.first > absl::Now())) {
        const absl::Time next =
            timers_.empty() ? absl::InfiniteFuture() : timers_.begin()->first.first;
        changed_.WaitWithDeadline(&mutex_, next);
      }
      if (stopping_) {
        return;
      }
      const auto due = timers_.begin();
      function = std::move(due->second);
      times_.erase(due->first.second);
      timers_.erase(due);
    }
    function();
  }
}

}  // namespace baton::router
