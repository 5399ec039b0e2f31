// The way into the engine thread.
#pragma once

#include <cstddef>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

#include "common/base/clock.h"

namespace baton::engine {

struct EngineState;

// Something that the engine thread does with its state, exactly once.
using Command = absl::AnyInvocable<void(EngineState&)>;

// Commands in order of arrival. Pushing is thread-safe and never blocks; one thread takes. Shared
// by the engine and by callbacks that may outlive it (sinks): pushing to a closed queue drops the
// command.
class CommandQueue {
 public:
  explicit CommandQueue(size_t capacity) : capacity_(capacity) {}

  // `command` is dropped with kResourceExhausted when `capacity` commands wait, with kUnavailable
  // when the queue is closed.
  absl::Status TryPush(Command command);
  // For commands that must not be lost and that something else bounds: a finished step (one), a
  // cancel (one per live request), the end of a sink (one per sink). May exceed the capacity.
  void PushAlways(Command command);

  // Waits until there is a command or `deadline` passes, then takes all of them.
  std::vector<Command> WaitAndTake(const Clock& clock, absl::Time deadline);
  // Takes what is left; nothing gets in any more.
  std::vector<Command> CloseAndTake();

 private:
  const size_t capacity_;
  absl::Mutex mutex_;
  absl::CondVar not_empty_;
  std::vector<Command> commands_ ABSL_GUARDED_BY(mutex_);
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace baton::engine
