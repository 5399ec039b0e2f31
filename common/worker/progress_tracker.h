// Decides whether an engine that has work makes progress (failure T4 of serving.md 3.3).
#pragma once

#include <cstdint>

#include "absl/time/time.h"

#include "common/engine/engine.h"

namespace baton::worker {

// Looks at load snapshots one after another. Idle time never counts: the clock starts when work
// appears and starts again with all progress. Not thread-safe; the clock is an argument.
class ProgressTracker {
 public:
  explicit ProgressTracker(absl::Duration stall_timeout) : stall_timeout_(stall_timeout) {}

  // True when there has been work and no progress for longer than the timeout.
  bool Stalled(const engine::EngineLoad& load, absl::Time now);

 private:
  const absl::Duration stall_timeout_;
  int64_t progress_ = -1;
  absl::Time waiting_since_ = absl::InfiniteFuture();
};

}  // namespace baton::worker
