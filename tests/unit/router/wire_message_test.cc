#include "services/router/operations/wire_message.h"

#include <string>

#include "gtest/gtest.h"

#include "common/rpc/status_details.h"
#include "proto/baton/inference/v1/inference.pb.h"

namespace baton::router {
namespace {

using inference::v1::GenerateRequest;

grpc::ByteBuffer Buffer(const std::string& bytes) {
  const grpc::Slice slice(bytes);
  return {&slice, 1};
}

// Serializes as a careless client would.
absl::Status Parse(const GenerateRequest& request, GenerateRequest* parsed) {
  return ParseRequest(Buffer(request.SerializeAsString()), parsed);
}

std::string BadField(const GenerateRequest& request) {
  GenerateRequest parsed;
  const absl::Status status = Parse(request, &parsed);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  const auto violations = rpc::FieldViolations(status);
  return violations.empty() ? "" : violations[0].field + ": " + violations[0].description;
}

TEST(WireMessageTest, CallThatEndedBeforeItsRequestCameIsCancelled) {
  GenerateRequest parsed;
  EXPECT_EQ(ParseRequest(grpc::ByteBuffer(), &parsed).code(), absl::StatusCode::kCancelled);
  EXPECT_TRUE(ParseRequest(SerializeResponse(GenerateRequest()), &parsed).ok());
}

TEST(WireMessageTest, RoundTrip) {
  GenerateRequest request;
  request.set_text("caf\u00e9");
  (*request.mutable_sampling()->mutable_logit_bias())[7] = 0.5f;
  GenerateRequest parsed;
  ASSERT_TRUE(ParseRequest(SerializeResponse(request), &parsed).ok());
  EXPECT_EQ(parsed.SerializeAsString(), request.SerializeAsString());
}

TEST(WireMessageTest, AStringThatIsNotUtf8IsNamedWithItsPlace) {
  GenerateRequest request;
  request.set_text("ab\xff");
  EXPECT_EQ(BadField(request), "text: is not valid UTF-8 at byte 2");
  request.Clear();
  request.mutable_sampling()->set_temperature(1.0f);
  (*request.mutable_sampling()->mutable_logit_bias())[7] = 0.5f;
  request.mutable_stopping()->add_stop("fine");
  request.mutable_stopping()->add_stop("\xc3");
  EXPECT_EQ(BadField(request), "stopping.stop: is not valid UTF-8 at byte 0");
  request.Clear();
  request.mutable_chat()->add_messages()->set_content("a\xe2\x82");
  EXPECT_EQ(BadField(request), "chat.messages.content: is not valid UTF-8 at byte 1");
}

TEST(WireMessageTest, BytesThatAreNoMessageAreInvalidAtEveryLength) {
  GenerateRequest request;
  request.mutable_chat()->add_messages()->set_content("hello");
  const std::string bytes = request.SerializeAsString();
  for (size_t size = 1; size < bytes.size(); ++size) {
    GenerateRequest parsed;
    const absl::Status status = ParseRequest(Buffer(bytes.substr(0, size)), &parsed);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << size;
    EXPECT_NE(status.message().find("GenerateRequest"), absl::string_view::npos) << status;
  }
}

}  // namespace
}  // namespace baton::router
