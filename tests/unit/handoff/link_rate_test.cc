#include "common/handoff/send/link_rate.h"

#include <cstdint>
#include <limits>

#include "absl/time/time.h"
#include "gtest/gtest.h"

namespace baton::handoff {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

class LinkRateTest : public testing::Test {
 protected:
  void Pass(absl::Duration time) { now_ += time; }
  // A post of its own.
  void Send(int64_t bytes, absl::Duration takes) {
    rate_.Began(now_);
    Pass(takes);
    rate_.Ended(bytes, now_);
  }

  LinkRate rate_;
  absl::Time now_ = absl::UnixEpoch();
};

TEST_F(LinkRateTest, NothingIsKnownBeforeAPostHasEnded) {
  EXPECT_EQ(rate_.bytes_per_second(), 0);
  rate_.Began(now_);
  Pass(absl::Seconds(1));
  EXPECT_EQ(rate_.bytes_per_second(), 0);
}

TEST_F(LinkRateTest, OnePostTellsTheRate) {
  Send(10 * kMiB, absl::Milliseconds(10));
  EXPECT_DOUBLE_EQ(rate_.bytes_per_second(), 1000.0 * kMiB);
}

TEST_F(LinkRateTest, PostsThatAreOpenTogetherShareTheLink) {
  for (int i = 0; i < 4; ++i) {
    rate_.Began(now_);
  }
  for (int i = 0; i < 4; ++i) {
    Pass(absl::Milliseconds(10));
    rate_.Ended(10 * kMiB, now_);
  }
  EXPECT_NEAR(rate_.bytes_per_second(), 1000.0 * kMiB, 1);
}

TEST_F(LinkRateTest, TimeWithoutAnOpenPostDoesNotCount) {
  for (int i = 0; i < 5; ++i) {
    Send(10 * kMiB, absl::Milliseconds(10));
    Pass(absl::Seconds(10));
  }
  EXPECT_NEAR(rate_.bytes_per_second(), 1000.0 * kMiB, 1);
}

TEST_F(LinkRateTest, FewBytesSayNothing) {
  Send(1000, absl::Milliseconds(10));
  EXPECT_EQ(rate_.bytes_per_second(), 0);
  Send(10 * kMiB, absl::Milliseconds(10));
  Send(1000, absl::Milliseconds(10));
  EXPECT_DOUBLE_EQ(rate_.bytes_per_second(), 1000.0 * kMiB);
}

TEST_F(LinkRateTest, FailedPostsTakeTimeAndBringNothing) {
  rate_.Began(now_);
  rate_.Began(now_);
  Pass(absl::Milliseconds(10));
  rate_.Ended(0, now_);
  rate_.Ended(10 * kMiB, now_);
  EXPECT_DOUBLE_EQ(rate_.bytes_per_second(), 1000.0 * kMiB);
}

TEST_F(LinkRateTest, ALinkThatChangesIsFollowed) {
  Send(10 * kMiB, absl::Milliseconds(10));
  Send(kMiB, absl::Milliseconds(50));  // 20 MiB/s; a tenth of the memory
  EXPECT_LT(rate_.bytes_per_second(), 950.0 * kMiB);
  EXPECT_GT(rate_.bytes_per_second(), 800.0 * kMiB);
  for (int i = 0; i < 120; ++i) {
    Send(kMiB, absl::Milliseconds(50));
  }
  EXPECT_NEAR(rate_.bytes_per_second(), 20.0 * kMiB, kMiB);
}

TEST(SegmentBytesTest, ALinkIsBusyWithASegmentForTwoMilliseconds) {
  EXPECT_EQ(SegmentBytes(1e9), 2'000'000);
  EXPECT_EQ(SegmentBytes(0), 8 * kMiB);
  EXPECT_EQ(SegmentBytes(12.5e6), 256 << 10);
  EXPECT_EQ(SegmentBytes(400e9), 64 * kMiB);
  EXPECT_EQ(SegmentBytes(std::numeric_limits<double>::infinity()), 64 * kMiB);
}

TEST(CreditBytesTest, ATransferHasFiftyMillisecondsOnTheWayOrFourSegments) {
  EXPECT_EQ(CreditBytes(1e9), 50'000'000);
  EXPECT_EQ(CreditBytes(0), 32 * kMiB);
  EXPECT_EQ(CreditBytes(1e6), kMiB);
  EXPECT_GE(CreditBytes(std::numeric_limits<double>::infinity()), 4 * SegmentBytes(1e12));
}

}  // namespace
}  // namespace baton::handoff
