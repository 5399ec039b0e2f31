#include "common/transport/completion_queue.h"

#include <utility>

namespace baton::transport {

void CompletionQueue::Push(Completion completion) {
  absl::MutexLock lock(&mutex_);
  completions_.push_back(std::move(completion));
  changed_.Signal();
}

void CompletionQueue::Wake() {
  absl::MutexLock lock(&mutex_);
  woken_ = true;
  changed_.Signal();
}

std::vector<Completion> CompletionQueue::Poll(absl::Time deadline) {
  absl::MutexLock lock(&mutex_);
  while (completions_.empty() && !woken_ && !released_) {
    if (changed_.WaitWithDeadline(&mutex_, deadline)) {
      break;
    }
  }
  woken_ = false;
  return std::exchange(completions_, {});
}

void CompletionQueue::Release() {
  absl::MutexLock lock(&mutex_);
  released_ = true;
  changed_.SignalAll();
}

bool CompletionQueue::released() const {
  absl::MutexLock lock(&mutex_);
  return released_;
}

}  // namespace baton::transport
