#include "common/rpc/request_log.h"

#include "gtest/gtest.h"

#include "common/rpc/status_details.h"

namespace baton::rpc {
namespace {

TEST(RequestLogTest, LineCarriesIdCodeDurationAndCounts) {
  EXPECT_EQ(FormatRequestLog({.rpc = "Decode.Generate",
                              .request_id = "r-1",
                              .traceparent = "",
                              .status = absl::OkStatus(),
                              .duration = absl::Milliseconds(12),
                              .counts = {{"prompt_tokens", 412}, {"completion_tokens", 7}}}),
            "request rpc=Decode.Generate request_id=r-1 code=OK duration_ms=12 prompt_tokens=412 "
            "completion_tokens=7");
}

TEST(RequestLogTest, ErrorsCarryReasonAndMessage) {
  EXPECT_EQ(
      FormatRequestLog({.rpc = "Prefill.Prefill",
                        .request_id = "r-1",
                        .traceparent = "00-ab-cd-01",
                        .status = WithReason(absl::UnavailableError("going away"), "DRAINING"),
                        .duration = absl::ZeroDuration(),
                        .counts = {}}),
      "request rpc=Prefill.Prefill request_id=r-1 traceparent=00-ab-cd-01 code=UNAVAILABLE "
      "reason=DRAINING message=\"going away\" duration_ms=0");
}

TEST(RequestLogTest, OutsideTextCannotForgeFieldsOrLines) {
  EXPECT_EQ(FormatRequestLog({.rpc = "x",
                              .request_id = "a\nrequest code=OK \"b\"",
                              .traceparent = "",
                              .status = absl::OkStatus(),
                              .duration = absl::ZeroDuration(),
                              .counts = {}}),
            "request rpc=x request_id=\"a\\nrequest code=OK \\\"b\\\"\" code=OK duration_ms=0");
}

}  // namespace
}  // namespace baton::rpc
