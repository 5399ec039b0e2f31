#include "services/client/error_text.h"

#include "gtest/gtest.h"

#include "common/rpc/status_details.h"
#include "common/rpc/status_mapping.h"

namespace baton::client {
namespace {

TEST(ErrorTextTest, ShowsCodeReasonAndDelay) {
  EXPECT_EQ(ErrorText(rpc::Unavailable("NO_ENDPOINTS", "nobody is ready", absl::Seconds(2))),
            "UNAVAILABLE: nobody is ready (reason NO_ENDPOINTS, retry after 2s)");
}

TEST(ErrorTextTest, ShowsMetadataAndFields) {
  const absl::Status status = rpc::WithReason(
      rpc::InvalidField("text", "is too long"), "PROMPT_TOO_LONG", {{"limit", "7"}});
  EXPECT_EQ(ErrorText(status),
            "INVALID_ARGUMENT: text: is too long (reason PROMPT_TOO_LONG, limit 7, field text)");
}

TEST(ErrorTextTest, AStatusKeepsItsDetailsOnTheWayThroughGrpc) {
  const absl::Status readable = ReadableStatus(
      rpc::ToGrpcStatus(rpc::Unavailable("DRAINING", "shutting down", absl::Seconds(1))));
  EXPECT_EQ(readable.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(rpc::RetryAfter(readable), absl::Seconds(1));
  EXPECT_EQ(readable.message(), "UNAVAILABLE: shutting down (reason DRAINING, retry after 1s)");
}

TEST(ErrorTextTest, OkIsOk) {
  EXPECT_EQ(ErrorText(absl::OkStatus()), "OK");
  EXPECT_TRUE(ReadableStatus(grpc::Status::OK).ok());
}

}  // namespace
}  // namespace baton::client
