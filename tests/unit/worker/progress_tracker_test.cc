#include "common/worker/progress_tracker.h"

#include "absl/time/time.h"
#include "gtest/gtest.h"

#include "common/engine/engine.h"

namespace baton::worker {
namespace {

const absl::Time kStart = absl::UnixEpoch();

engine::EngineLoad Load(bool has_work, int64_t progress) {
  engine::EngineLoad load;
  load.has_work = has_work;
  load.progress = progress;
  return load;
}

TEST(ProgressTrackerTest, WorkWithoutProgressIsAStallAfterTheTimeout) {
  ProgressTracker tracker(absl::Seconds(10));
  EXPECT_FALSE(tracker.Stalled(Load(true, 5), kStart));
  EXPECT_FALSE(tracker.Stalled(Load(true, 5), kStart + absl::Seconds(10)));
  EXPECT_TRUE(tracker.Stalled(Load(true, 5), kStart + absl::Seconds(11)));
}

TEST(ProgressTrackerTest, AllProgressStartsTheClockAgain) {
  ProgressTracker tracker(absl::Seconds(10));
  for (int i = 0; i < 20; ++i) {
    EXPECT_FALSE(tracker.Stalled(Load(true, i), kStart + i * absl::Seconds(9)));
  }
  EXPECT_TRUE(tracker.Stalled(Load(true, 19), kStart + absl::Seconds(19 * 9 + 11)));
  EXPECT_FALSE(tracker.Stalled(Load(true, 20), kStart + absl::Seconds(19 * 9 + 12)));
}

TEST(ProgressTrackerTest, IdleTimeDoesNotCount) {
  ProgressTracker tracker(absl::Seconds(10));
  EXPECT_FALSE(tracker.Stalled(Load(false, 5), kStart));
  EXPECT_FALSE(tracker.Stalled(Load(false, 5), kStart + absl::Hours(1)));
  EXPECT_FALSE(tracker.Stalled(Load(true, 5), kStart + absl::Hours(2)));
  EXPECT_FALSE(tracker.Stalled(Load(true, 5), kStart + absl::Hours(2) + absl::Seconds(10)));
  EXPECT_TRUE(tracker.Stalled(Load(true, 5), kStart + absl::Hours(2) + absl::Seconds(11)));
}

}  // namespace
}  // namespace baton::worker
