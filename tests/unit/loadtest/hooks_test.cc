// Commands at given times.
#include "services/loadtest/stream/hooks.h"

#include <string>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "services/loadtest/stream/run_clock.h"
#include "services/loadtest/stream/timer_queue.h"

namespace baton::loadtest {
namespace {

using ::testing::HasSubstr;

TEST(HooksTest, ReadsTimesAndCommands) {
  const auto hooks = ParseHooks("# stop, then go on\n20s kill -STOP 1\n\n  1m30s kill -CONT 1\r\n");
  ASSERT_TRUE(hooks.ok()) << hooks.status();
  ASSERT_EQ(hooks->size(), 2u);
  EXPECT_EQ(hooks->at(0).at, absl::Seconds(20));
  EXPECT_EQ(hooks->at(0).command, "kill -STOP 1");
  EXPECT_EQ(hooks->at(1).at, absl::Seconds(90));
  EXPECT_EQ(hooks->at(1).command, "kill -CONT 1");
}

TEST(HooksTest, WhatIsNoHookIsRefusedWithItsLine) {
  for (const char* text : {"\n20s", "\nsoon kill 1", "\n-1s true", "\n20 true"}) {
    const auto hooks = ParseHooks(text);
    EXPECT_EQ(hooks.status().code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(hooks.status().message()), HasSubstr("line 2")) << text;
  }
}

TEST(HooksTest, RunsCommandsAndTellsHowTheyEnded) {
  const RunClock clock;
  TimerQueue timers(&clock);
  HookRunner runner({{.at = absl::ZeroDuration(), .command = "exit 3"},
                     {.at = absl::Milliseconds(1), .command = "kill -KILL $$"},
                     {.at = absl::Hours(1), .command = "true"}},
                    &clock,
                    &timers);
  std::vector<HookRun> runs;
  for (int tries = 0; tries < 3000; ++tries) {
    runs = runner.Collect();
    if (runs.size() == 2 && runs[0].result == "exit 3" && runs[1].result == "signal 9") {
      break;
    }
    absl::SleepFor(absl::Milliseconds(10));
  }
  ASSERT_EQ(runs.size(), 2u);
  EXPECT_EQ(runs[0].result, "exit 3");
  EXPECT_EQ(runs[1].result, "signal 9");
}

TEST(TimerQueueTest, CallsInOrderOfTime) {
  const RunClock clock;
  absl::Mutex mutex;
  std::string order;
  {
    TimerQueue timers(&clock);
    const auto add = [&](char letter) {
      return [&, letter] {
        absl::MutexLock lock(&mutex);
        order += letter;
      };
    };
    timers.Call(absl::Milliseconds(30), add('c'));
    timers.Call(absl::Milliseconds(10), add('a'));
    timers.Call(absl::Milliseconds(10), add('b'));
    timers.Call(absl::Hours(1), add('x'));
    absl::MutexLock lock(&mutex);
    mutex.Await(absl::Condition(+[](std::string* text) { return text->size() == 3; }, &order));
  }
  EXPECT_EQ(order, "abc");
}

}  // namespace
}  // namespace baton::loadtest
