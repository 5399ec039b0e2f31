// The line that a running load shows.
#include "services/loadtest/report/progress.h"

#include "absl/time/time.h"
#include "gtest/gtest.h"

#include "services/loadtest/stream/live_counters.h"

namespace baton::loadtest {
namespace {

TEST(ProgressTest, ShowsWhatIsGoingOnAndHowMuchIsDone) {
  LiveCounters counters;
  counters.sent = 30;
  counters.ended = 25;
  counters.succeeded = 23;
  counters.failed = 2;
  EXPECT_EQ(ProgressText({}, absl::Seconds(12), counters, 812.4),
            "12.0 s  sent 30  open 5  done 23  failed 2  812 tokens/s");
  EXPECT_EQ(ProgressText(
                {.duration = absl::Seconds(48), .requests = 100}, absl::Seconds(36), counters, 0),
            " 75 %  36.0 s  sent 30  open 5  done 23  failed 2  0 tokens/s");
  EXPECT_TRUE(ProgressText({.requests = 100}, absl::Seconds(1), counters, 0).starts_with(" 25 %"));
  EXPECT_TRUE(
      ProgressText({.duration = absl::Seconds(1), .requests = 0}, absl::Seconds(9), counters, 0)
          .starts_with("100 %"));
}

}  // namespace
}  // namespace baton::loadtest
