#include "common/worker/progress_tracker.h"

#include "absl/time/time.h"

#include "common/engine/engine.h"

namespace baton::worker {

bool ProgressTracker::Stalled(const engine::EngineLoad& load, absl::Time now) {
  if (!load.has_work) {
    waiting_since_ = absl::InfiniteFuture();
  } else if (waiting_since_ == absl::InfiniteFuture() || load.progress != progress_) {
    waiting_since_ = now;
  }
  progress_ = load.progress;
  return load.has_work && now - waiting_since_ > stall_timeout_;
}

}  // namespace baton::worker
