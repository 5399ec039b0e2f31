#include "common/engine/command_queue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <thread>

#include "common/base/clock.h"

namespace baton::engine {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

void Nothing(EngineState&) {}

TEST(CommandQueueTest, FullQueueRefusesButNotWhatMustNotBeLost) {
  CommandQueue queue(2);
  EXPECT_TRUE(queue.TryPush(Nothing).ok());
  EXPECT_TRUE(queue.TryPush(Nothing).ok());
  EXPECT_EQ(queue.TryPush(Nothing).code(), absl::StatusCode::kResourceExhausted);
  queue.PushAlways(Nothing);
  EXPECT_THAT(queue.WaitAndTake(Clock::Real(), absl::InfiniteFuture()), SizeIs(3));
  EXPECT_TRUE(queue.TryPush(Nothing).ok());
}

TEST(CommandQueueTest, WaitEndsAtItsDeadline) {
  CommandQueue queue(2);
  EXPECT_THAT(queue.WaitAndTake(Clock::Real(), absl::InfinitePast()), IsEmpty());
}

TEST(CommandQueueTest, WaiterWakesForACommand) {
  CommandQueue queue(2);
  std::thread pusher([&] { queue.PushAlways(Nothing); });
  EXPECT_THAT(queue.WaitAndTake(Clock::Real(), absl::InfiniteFuture()), SizeIs(1));
  pusher.join();
}

TEST(CommandQueueTest, ClosedQueueDropsCommandsAndWhatTheyHold) {
  CommandQueue queue(2);
  EXPECT_TRUE(queue.TryPush(Nothing).ok());
  EXPECT_THAT(queue.CloseAndTake(), SizeIs(1));
  auto held = std::make_shared<int>(1);
  EXPECT_EQ(queue.TryPush([held](EngineState&) {}).code(), absl::StatusCode::kUnavailable);
  queue.PushAlways([held](EngineState&) {});
  EXPECT_EQ(held.use_count(), 1);
}

}  // namespace
}  // namespace baton::engine
