#include "common/worker/engine_status.h"

#include "gtest/gtest.h"

#include "common/rpc/status_details.h"

namespace baton::worker {
namespace {

TEST(DescribeStatusTest, LeadingReasonBecomesErrorInfo) {
  const absl::Status status =
      DescribeStatus(absl::FailedPreconditionError("STALE_EPOCH: reservation 7 is gone"));
  EXPECT_EQ(rpc::ReasonOf(status), "STALE_EPOCH");
  EXPECT_FALSE(rpc::RetryAfter(status).has_value());
}

TEST(DescribeStatusTest, WhatIsFullNowMayBeRetried) {
  const absl::Status status =
      DescribeStatus(absl::ResourceExhaustedError("KV_POOL_FULL: needs 7 pages, 3 are free"));
  EXPECT_EQ(rpc::ReasonOf(status), "KV_POOL_FULL");
  EXPECT_TRUE(rpc::RetryAfter(status).has_value());
}

TEST(DescribeStatusTest, AClientThatReadTooSlowlyIsNotToldToRepeat) {
  const absl::Status status = DescribeStatus(
      rpc::WithReason(absl::ResourceExhaustedError("too slow"), rpc::reason::kSlowReader));
  EXPECT_EQ(rpc::ReasonOf(status), "SLOW_READER");
  EXPECT_FALSE(rpc::RetryAfter(status).has_value());
}

TEST(DescribeStatusTest, WhatCanNeverFitMayNot) {
  const absl::Status status =
      DescribeStatus(absl::InvalidArgumentError("EXCEEDS_CAPACITY: needs 700 pages"));
  EXPECT_EQ(rpc::ReasonOf(status), "EXCEEDS_CAPACITY");
  EXPECT_FALSE(rpc::RetryAfter(status).has_value());
}

TEST(DescribeStatusTest, ReasonAndRetryThatAreThereStay) {
  const absl::Status status = DescribeStatus(rpc::WithRetry(
      rpc::WithReason(absl::UnavailableError("DRAINING: x"), "DECODE_LOST"), absl::Seconds(9)));
  EXPECT_EQ(rpc::ReasonOf(status), "DECODE_LOST");
  EXPECT_EQ(rpc::RetryAfter(status), absl::Seconds(9));
}

TEST(DescribeStatusTest, OrdinaryMessagesHaveNoReason) {
  EXPECT_EQ(rpc::ReasonOf(DescribeStatus(absl::InternalError("KV is broken: page 7"))), "");
  EXPECT_EQ(rpc::ReasonOf(DescribeStatus(absl::InternalError("IO: page 7"))), "");
  EXPECT_TRUE(DescribeStatus(absl::OkStatus()).ok());
}

}  // namespace
}  // namespace baton::worker
