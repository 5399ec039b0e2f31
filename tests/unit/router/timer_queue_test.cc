#include "services/router/timer_queue.h"

#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace baton::router {
namespace {

TEST(TimerQueueTest, RunsInOrderOfTimeNotOfSubmission) {
  TimerQueue timers;
  std::vector<int> order;  // written by the timer thread alone until `done`
  absl::Notification done;
  const absl::Time base = absl::Now() + absl::Milliseconds(30);
  timers.At(base + absl::Milliseconds(20), [&] {
    order.push_back(2);
    done.Notify();
  });
  timers.At(base, [&] { order.push_back(1); });
  done.WaitForNotification();
  EXPECT_THAT(order, ::testing::ElementsAre(1, 2));
}

TEST(TimerQueueTest, ACancelledTimerNeverRuns) {
  TimerQueue timers;
  bool ran = false;
  absl::Notification done;
  const auto id = timers.After(absl::Milliseconds(20), [&] { ran = true; });
  timers.Cancel(id);
  timers.Cancel(id);
  timers.Cancel(0);
  timers.After(absl::Milliseconds(40), [&] { done.Notify(); });
  done.WaitForNotification();
  EXPECT_FALSE(ran);
}

TEST(TimerQueueTest, AFunctionMaySetAnotherTimer) {
  TimerQueue timers;
  absl::Notification done;
  timers.After(absl::ZeroDuration(),
               [&] { timers.After(absl::ZeroDuration(), [&] { done.Notify(); }); });
  done.WaitForNotification();
}

TEST(TimerQueueTest, StopDropsWhatIsNotDue) {
  bool ran = false;
  TimerQueue timers;
  timers.After(absl::Hours(1), [&] { ran = true; });
  timers.Stop();
  EXPECT_FALSE(ran);
}

}  // namespace
}  // namespace baton::router
