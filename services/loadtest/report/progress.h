// What a running load looks like on a terminal.
#pragma once

#include <cstdint>
#include <string>

#include "absl/time/time.h"

#include "services/loadtest/stream/live_counters.h"

namespace baton::loadtest {

// What a load will be when it is over, as far as that is known.
struct ProgressGoal {
  absl::Duration duration = absl::InfiniteDuration();
  int64_t requests = 0;  // 0: unknown
};

// "42 %  12.0 s  sent 240  open 8  done 230  failed 2  812 tokens/s": the rate is that since the
// line before, the share that of the goal. Redrawn in place on a terminal; elsewhere a line every
// 10 s. Not thread-safe.
class Progress {
 public:
  explicit Progress(const ProgressGoal& goal);
  // Ends the line.
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void Show(absl::Duration elapsed, const LiveCounters& counters);

 private:
  const ProgressGoal goal_;
  const bool terminal_;
  absl::Duration last_shown_;
  int64_t last_tokens_ = 0;
  bool shown_ = false;
};

// The line of `counters`; without a goal it has no share.
std::string ProgressText(const ProgressGoal& goal,
                         absl::Duration elapsed,
                         const LiveCounters& counters,
                         double tokens_per_second);

}  // namespace baton::loadtest
