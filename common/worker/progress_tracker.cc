#include "common/worker/progress_tracker.h"

namespace baton::worker {

bool ProgressTracker::Stalled(const engine::EngineLoad& load, absl::Time now) {
  if (!load.has_work) {
    waiting_since_ = absl::InfiniteFuture();
  } else if (waiting_since_ == absl::InfiniteFuture() || load.steps != steps_) {
    waiting_since_ = now;
  }
  steps_ = load.steps;
  return load.has_work && now - waiting_since_ > stall_timeout_;
}

}  // namespace baton::worker
