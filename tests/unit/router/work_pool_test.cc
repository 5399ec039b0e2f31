#include "services/router/work_pool.h"

#include "absl/synchronization/notification.h"
#include "gtest/gtest.h"

namespace baton::router {
namespace {

TEST(WorkPoolTest, RefusesMoreThanMayWait) {
  WorkPool pool(1, 2);
  absl::Notification started;
  absl::Notification release;
  ASSERT_TRUE(pool.TrySubmit([&] {
    started.Notify();
    release.WaitForNotification();
  }));
  started.WaitForNotification();
  absl::Notification last;
  EXPECT_TRUE(pool.TrySubmit([] {}));
  EXPECT_TRUE(pool.TrySubmit([&] { last.Notify(); }));
  EXPECT_FALSE(pool.TrySubmit([] {}));
  release.Notify();
  last.WaitForNotification();
}

TEST(WorkPoolTest, AStoppedPoolTakesNothing) {
  WorkPool pool(2, 8);
  pool.Stop();
  EXPECT_FALSE(pool.TrySubmit([] {}));
}

}  // namespace
}  // namespace baton::router
