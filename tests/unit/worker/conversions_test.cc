#include "common/worker/conversions.h"

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

#include "common/engine/request.h"
#include "common/rpc/status_details.h"

namespace baton::worker {
namespace {

TEST(ConversionsTest, EverySamplingFieldArrives) {
  v1::SamplingParams proto;
  proto.set_temperature(0.7f);
  proto.set_top_p(0.9f);
  proto.set_top_k(40);
  proto.set_min_p(0.05f);
  proto.set_presence_penalty(0.1f);
  proto.set_frequency_penalty(0.2f);
  proto.set_repetition_penalty(1.1f);
  (*proto.mutable_logit_bias())[17] = -2.5f;
  proto.set_seed(0xFFFFFFFFFFFFFFFFULL);
  proto.set_n(3);
  proto.set_max_tokens(100);
  proto.set_min_tokens(2);
  proto.add_stop_token_ids(4081);
  proto.set_logprobs(5);
  const auto params = SamplingFromProto(proto);
  ASSERT_TRUE(params.ok()) << params.status();
  EXPECT_EQ(params->temperature, 0.7f);
  EXPECT_EQ(params->top_p, 0.9f);
  EXPECT_EQ(params->top_k, 40);
  EXPECT_EQ(params->min_p, 0.05f);
  EXPECT_EQ(params->presence_penalty, 0.1f);
  EXPECT_EQ(params->frequency_penalty, 0.2f);
  EXPECT_EQ(params->repetition_penalty, 1.1f);
  EXPECT_EQ(params->logit_bias, (std::vector<std::pair<int32_t, float>>{{17, -2.5f}}));
  EXPECT_EQ(params->seed, 0xFFFFFFFFFFFFFFFFULL);
  EXPECT_EQ(params->n, 3);
  EXPECT_EQ(params->max_tokens, 100);
  EXPECT_EQ(params->min_tokens, 2);
  EXPECT_EQ(params->stop_token_ids, (std::vector<int32_t>{4081}));
  EXPECT_EQ(params->logprobs, 5);
}

TEST(ConversionsTest, LogprobsZeroDiffersFromUnset) {
  v1::SamplingParams proto;
  EXPECT_FALSE(SamplingFromProto(proto)->logprobs.has_value());
  proto.set_logprobs(0);
  EXPECT_EQ(SamplingFromProto(proto)->logprobs, 0);
}

TEST(ConversionsTest, CountsBeyondInt32AreRefusedByName) {
  v1::SamplingParams proto;
  proto.set_max_tokens(0x80000000U);
  const absl::Status status = SamplingFromProto(proto).status();
  ASSERT_EQ(rpc::FieldViolations(status).size(), 1U);
  EXPECT_EQ(rpc::FieldViolations(status)[0].field, "sampling.max_tokens");
}

TEST(ConversionsTest, PromptBytesRoundTripAndAreLittleEndian) {
  const std::vector<int32_t> prompt = {1, 256, 70000, 0};
  const std::string bytes = PromptToBytes(prompt);
  EXPECT_EQ(bytes.substr(0, 8), std::string("\x01\0\0\0\0\x01\0\0", 8));
  EXPECT_EQ(*PromptFromBytes(bytes), prompt);
}

TEST(ConversionsTest, PromptCutInsideATokenOrEmptyIsRefusedAtEachLength) {
  const std::string bytes = PromptToBytes(std::vector<int32_t>{1, 2});
  for (const size_t size : {0U, 1U, 2U, 3U, 5U, 6U, 7U}) {
    const absl::Status status = PromptFromBytes(bytes.substr(0, size)).status();
    ASSERT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << size;
    EXPECT_EQ(rpc::FieldViolations(status)[0].field, "prompt_token_ids");
  }
}

TEST(ConversionsTest, DeliveredTokensAreReadPerSequenceAndMayBeNone) {
  v1::DecodeRequest request;
  EXPECT_TRUE(DeliveredFromProto(request)->empty());
  request.add_delivered()->set_token_ids(PromptToBytes(std::vector<int32_t>{7, 70000}));
  request.add_delivered();
  EXPECT_EQ(*DeliveredFromProto(request), (std::vector<std::vector<int32_t>>{{7, 70000}, {}}));
}

TEST(ConversionsTest, DeliveredTokensCutInsideATokenAreRefusedAtEachLength) {
  const std::string bytes = PromptToBytes(std::vector<int32_t>{1, 2});
  for (const size_t size : {1U, 2U, 3U, 5U, 6U, 7U}) {
    v1::DecodeRequest request;
    request.add_delivered()->set_token_ids(bytes.substr(0, size));
    const absl::Status status = DeliveredFromProto(request).status();
    ASSERT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << size;
    EXPECT_EQ(rpc::FieldViolations(status)[0].field, "delivered");
  }
}

TEST(ConversionsTest, LogprobsTravelOnlyWhenAskedFor) {
  const std::vector<engine::TokenOutput> tokens = {
      {.token_id = 7, .logprob = -0.5f, .top_logprobs = {{7, -0.5f}, {8, -1.5f}}}};
  const v1::TokenDelta plain = ToProto(2, tokens, /*with_logprobs=*/false);
  EXPECT_EQ(plain.index(), 2U);
  EXPECT_EQ(plain.tokens(0).id(), 7U);
  EXPECT_FALSE(plain.tokens(0).has_logprob());
  const v1::TokenDelta with = ToProto(2, tokens, /*with_logprobs=*/true);
  EXPECT_EQ(with.tokens(0).logprob(), -0.5f);
  ASSERT_EQ(with.tokens(0).top_logprobs_size(), 2);
  EXPECT_EQ(with.tokens(0).top_logprobs(1).token_id(), 8U);
}

TEST(ConversionsTest, FinishKeepsReasonAndStopToken) {
  const v1::SequenceFinished stop =
      ToProto(1, {.reason = engine::FinishReason::kStop, .stop_token_id = 4081});
  EXPECT_EQ(stop.reason(), v1::FINISH_REASON_STOP);
  EXPECT_EQ(stop.stop_token_id(), 4081U);
  const v1::SequenceFinished length =
      ToProto(1, {.reason = engine::FinishReason::kLength, .stop_token_id = {}});
  EXPECT_EQ(length.reason(), v1::FINISH_REASON_LENGTH);
  EXPECT_FALSE(length.has_stop_token_id());
}

TEST(ConversionsTest, DurationsKeepNanoseconds) {
  const google::protobuf::Duration proto = ToProto(absl::Seconds(3) + absl::Nanoseconds(7));
  EXPECT_EQ(proto.seconds(), 3);
  EXPECT_EQ(proto.nanos(), 7);
}

}  // namespace
}  // namespace baton::worker
