// Commands that are run while a load is on: stop a worker, kill it, start it again.
#pragma once

#include <sys/types.h>

#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

#include "services/loadtest/stream/run_clock.h"
#include "services/loadtest/stream/timer_queue.h"

namespace baton::loadtest {

struct Hook {
  absl::Duration at;  // from the start of the run
  std::string command;
};

// A command that was started.
struct HookRun {
  absl::Duration at;
  std::string command;
  std::string result;  // "exit 0", "signal 9", "still running", "not started: ..."
};

// Lines "20s kill -STOP 4711"; empty ones and those that begin with # are passed over.
// kInvalidArgument names the line.
absl::StatusOr<std::vector<Hook>> ParseHooks(std::string_view text);

// Runs commands with /bin/sh -c at their times. Thread-safe.
class HookRunner {
 public:
  // Both borrowed; `timers` must have been destroyed, or the last hook have been due, before this
  // is destroyed.
  HookRunner(std::vector<Hook> hooks, const RunClock* clock, TimerQueue* timers);

  // What became of the commands that were due; those that still run go on.
  std::vector<HookRun> Collect();

 private:
  struct Child {
    HookRun run;
    pid_t pid = 0;
  };

  void Start(const Hook& hook);

  const std::vector<Hook> hooks_;
  const RunClock* const clock_;
  absl::Mutex mutex_;
  std::deque<Child> children_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace baton::loadtest
