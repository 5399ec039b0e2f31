#include "common/engine/command_queue.h"

#include <utility>

namespace baton::engine {

bool CommandQueue::TryPush(Command command) {
  absl::MutexLock lock(&mutex_);
  if (closed_ || commands_.size() >= capacity_) {
    return false;
  }
  commands_.push_back(std::move(command));
  not_empty_.Signal();
  return true;
}

void CommandQueue::PushAlways(Command command) {
  absl::MutexLock lock(&mutex_);
  if (closed_) {
    return;
  }
  commands_.push_back(std::move(command));
  not_empty_.Signal();
}

std::vector<Command> CommandQueue::WaitAndTake(const Clock& clock, absl::Time deadline) {
  absl::MutexLock lock(&mutex_);
  if (commands_.empty()) {
    clock.WaitUntil(mutex_, not_empty_, deadline);
  }
  return std::exchange(commands_, {});
}

std::vector<Command> CommandQueue::CloseAndTake() {
  absl::MutexLock lock(&mutex_);
  closed_ = true;
  return std::exchange(commands_, {});
}

}  // namespace baton::engine
