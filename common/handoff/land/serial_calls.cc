#include "common/handoff/land/serial_calls.h"

#include <utility>

namespace baton::handoff {

void SerialCalls::Add(std::function<void()> call) {
  absl::MutexLock lock(&mutex_);
  calls_.push_back(std::move(call));
}

void SerialCalls::Run() {
  {
    absl::MutexLock lock(&mutex_);
    if (running_) {
      return;
    }
    running_ = true;
  }
  for (;;) {
    std::function<void()> call;
    {
      absl::MutexLock lock(&mutex_);
      if (calls_.empty()) {
        running_ = false;
        return;
      }
      call = std::move(calls_.front());
      calls_.pop_front();
    }
    call();
  }
}

}  // namespace baton::handoff
