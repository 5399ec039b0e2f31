#include "common/engine/command_queue.h"

#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"

#include "common/base/clock.h"

namespace baton::engine {

absl::Status CommandQueue::TryPush(Command command) {
  absl::MutexLock lock(&mutex_);
  if (closed_) {
    return absl::UnavailableError("the engine has shut down; use another worker");
  }
  if (commands_.size() >= capacity_) {
    return absl::ResourceExhaustedError(
        "QUEUE_FULL: the engine's command queue is full; retry later");
  }
  commands_.push_back(std::move(command));
  not_empty_.Signal();
  return absl::OkStatus();
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
