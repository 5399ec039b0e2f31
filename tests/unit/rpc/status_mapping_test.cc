#include "common/rpc/status_mapping.h"

#include <map>
#include <string>

#include "absl/strings/cord.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"

#include "common/rpc/status_details.h"

namespace baton::rpc {
namespace {

absl::Status RoundTrip(const absl::Status& status) { return FromGrpcStatus(ToGrpcStatus(status)); }

TEST(StatusMappingTest, EveryCodeAndMessageSurviveTheRoundTrip) {
  for (int code = 0; code <= 16; ++code) {
    const absl::Status status(static_cast<absl::StatusCode>(code), "what, where");
    EXPECT_EQ(RoundTrip(status), status) << code;
    EXPECT_EQ(static_cast<int>(ToGrpcStatus(status).error_code()), code);
  }
}

TEST(StatusMappingTest, ReasonMetadataAndRetrySurviveTheRoundTrip) {
  const absl::Status status = WithRetry(
      WithReason(absl::ResourceExhaustedError("pool full"), reason::kKvPoolFull, {{"pages", "7"}}),
      absl::Milliseconds(1250));
  const absl::Status back = RoundTrip(status);
  EXPECT_EQ(back, status);
  EXPECT_EQ(ReasonOf(back), "KV_POOL_FULL");
  EXPECT_EQ(ReasonMetadata(back), (std::map<std::string, std::string>{{"pages", "7"}}));
  EXPECT_EQ(RetryAfter(back), absl::Milliseconds(1250));
}

TEST(StatusMappingTest, InvalidFieldNamesTheFieldOnTheOtherSide) {
  const absl::Status back = RoundTrip(InvalidField("sampling.top_p", "must be in (0, 1]"));
  EXPECT_EQ(back.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(back.message(), "sampling.top_p: must be in (0, 1]");
  ASSERT_EQ(FieldViolations(back).size(), 1U);
  EXPECT_EQ(FieldViolations(back)[0].field, "sampling.top_p");
  EXPECT_EQ(FieldViolations(back)[0].description, "must be in (0, 1]");
}

TEST(StatusMappingTest, RefusalWithoutRetryInfoHasNone) {
  EXPECT_FALSE(RetryAfter(RoundTrip(absl::ResourceExhaustedError("never"))).has_value());
  EXPECT_EQ(ReasonOf(RoundTrip(absl::ResourceExhaustedError("never"))), "");
}

TEST(StatusMappingTest, PayloadsOfOtherTypesStayInTheProcess) {
  absl::Status status = absl::InternalError("x");
  status.SetPayload("baton/private", absl::Cord("secret"));
  EXPECT_TRUE(ToGrpcStatus(status).error_details().empty());
}

TEST(StatusMappingTest, LongMessagesAreCutBetweenCharacters) {
  std::string message;
  for (int i = 0; i < 2000; ++i) {
    message += "é";
  }
  const std::string cut = ToGrpcStatus(absl::InternalError(message)).error_message();
  EXPECT_LE(cut.size(), 1024U);
  EXPECT_EQ(cut.substr(cut.size() - 3), "...");
  EXPECT_EQ((cut.size() - 3) % 2, 0U);
}

TEST(StatusMappingTest, OversizedDetailsAreDroppedNotSent) {
  const absl::Status status =
      WithReason(absl::InternalError("x"), reason::kDraining, {{"k", std::string(10'000, 'v')}});
  EXPECT_TRUE(ToGrpcStatus(status).error_details().empty());
}

TEST(StatusMappingTest, GarbageDetailsAndUnknownCodesFromThePeerAreTolerated) {
  const grpc::Status garbage(grpc::StatusCode::ABORTED, "m", "\xff\xff not a proto");
  EXPECT_EQ(FromGrpcStatus(garbage), absl::AbortedError("m"));
  int outside = 31;  // no code, and the largest value that the enumeration can hold
  const grpc::Status unknown(static_cast<grpc::StatusCode>(outside), "m");
  EXPECT_EQ(FromGrpcStatus(unknown).code(), absl::StatusCode::kUnknown);
}

TEST(StatusMappingTest, EveryCodeHasItsName) {
  EXPECT_STREQ(CodeName(absl::StatusCode::kOk), "OK");
  EXPECT_STREQ(CodeName(absl::StatusCode::kDataLoss), "DATA_LOSS");
  EXPECT_STREQ(CodeName(absl::StatusCode::kUnauthenticated), "UNAUTHENTICATED");
  EXPECT_STREQ(CodeName(static_cast<absl::StatusCode>(77)), "UNKNOWN");
}

}  // namespace
}  // namespace baton::rpc
