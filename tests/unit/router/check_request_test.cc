#include "services/router/validate/check_request.h"

#include <cmath>
#include <functional>
#include <limits>
#include <string>

#include "gtest/gtest.h"

#include "common/rpc/status_details.h"
#include "tests/unit/router/test_model.h"

namespace baton::router {
namespace {

using inference::v1::GenerateRequest;

GenerateRequest Good() {
  GenerateRequest request;
  request.set_text("hello");
  return request;
}

struct BadCase {
  const char* name;
  const char* field;  // the violation that must be named
  std::function<void(GenerateRequest*)> spoil;
};

class BadRequestTest : public ::testing::TestWithParam<BadCase> {};

TEST_P(BadRequestTest, NamesTheField) {
  GenerateRequest request = Good();
  GetParam().spoil(&request);
  const absl::Status status = CheckRequest(TestModel(), request);
  ASSERT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  const auto violations = rpc::FieldViolations(status);
  ASSERT_EQ(violations.size(), 1u) << status;
  EXPECT_EQ(violations[0].field, GetParam().field);
  EXPECT_FALSE(violations[0].description.empty());
  EXPECT_NE(status.message().find(GetParam().field), absl::string_view::npos);
}

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

INSTANTIATE_TEST_SUITE_P(
    Table,
    BadRequestTest,
    ::testing::Values(
        BadCase{"NoPrompt", "prompt", [](auto* r) { r->clear_text(); }},
        BadCase{"EmptyText", "text", [](auto* r) { r->set_text(""); }},
        BadCase{"InvalidUtf8", "text", [](auto* r) { r->set_text("a\xff"); }},
        BadCase{"NoTokenIds", "token_ids.ids", [](auto* r) { r->mutable_token_ids(); }},
        BadCase{"UnknownTokenId",
                "token_ids.ids[1]",
                [](auto* r) {
                  r->mutable_token_ids()->add_ids(1);
                  r->mutable_token_ids()->add_ids(4096);
                }},
        BadCase{"NoMessages", "chat.messages", [](auto* r) { r->mutable_chat(); }},
        BadCase{"ManyMessages",
                "chat.messages",
                [](auto* r) {
                  for (int i = 0; i < 5000; ++i) {
                    r->mutable_chat()->add_messages();
                  }
                }},
        BadCase{"NoRole",
                "chat.messages[0].role",
                [](auto* r) { r->mutable_chat()->add_messages()->set_content("x"); }},
        BadCase{"NegativeTemperature",
                "sampling.temperature",
                [](auto* r) { r->mutable_sampling()->set_temperature(-0.1f); }},
        BadCase{"NanTemperature",
                "sampling.temperature",
                [](auto* r) { r->mutable_sampling()->set_temperature(kNan); }},
        BadCase{"InfiniteTemperature",
                "sampling.temperature",
                [](auto* r) { r->mutable_sampling()->set_temperature(kInf); }},
        BadCase{
            "ZeroTopP", "sampling.top_p", [](auto* r) { r->mutable_sampling()->set_top_p(0.0f); }},
        BadCase{"LargeTopP",
                "sampling.top_p",
                [](auto* r) { r->mutable_sampling()->set_top_p(1.01f); }},
        BadCase{
            "NanTopP", "sampling.top_p", [](auto* r) { r->mutable_sampling()->set_top_p(kNan); }},
        BadCase{
            "LargeMinP", "sampling.min_p", [](auto* r) { r->mutable_sampling()->set_min_p(1.0f); }},
        BadCase{"LargePresencePenalty",
                "sampling.presence_penalty",
                [](auto* r) { r->mutable_sampling()->set_presence_penalty(2.5f); }},
        BadCase{"NanFrequencyPenalty",
                "sampling.frequency_penalty",
                [](auto* r) { r->mutable_sampling()->set_frequency_penalty(kNan); }},
        BadCase{"ZeroRepetitionPenalty",
                "sampling.repetition_penalty",
                [](auto* r) { r->mutable_sampling()->set_repetition_penalty(0.0f); }},
        BadCase{"ZeroN", "sampling.n", [](auto* r) { r->mutable_sampling()->set_n(0); }},
        BadCase{"LargeN", "sampling.n", [](auto* r) { r->mutable_sampling()->set_n(65); }},
        BadCase{"UnknownBiasId",
                "sampling.logit_bias[4096]",
                [](auto* r) { (*r->mutable_sampling()->mutable_logit_bias())[4096] = 1.0f; }},
        BadCase{"InfiniteBias",
                "sampling.logit_bias[7]",
                [](auto* r) { (*r->mutable_sampling()->mutable_logit_bias())[7] = kInf; }},
        BadCase{"ZeroMaxTokens",
                "stopping.max_tokens",
                [](auto* r) { r->mutable_stopping()->set_max_tokens(0); }},
        BadCase{"MinAboveMax",
                "stopping.min_tokens",
                [](auto* r) {
                  r->mutable_stopping()->set_max_tokens(3);
                  r->mutable_stopping()->set_min_tokens(4);
                }},
        BadCase{"EmptyStop",
                "stopping.stop[0]",
                [](auto* r) { r->mutable_stopping()->add_stop(std::string()); }},
        BadCase{"ManyStops",
                "stopping.stop",
                [](auto* r) {
                  for (int i = 0; i < 65; ++i) {
                    r->mutable_stopping()->add_stop(std::string(1, 'x'));
                  }
                }},
        BadCase{"ManyEmptyStops",
                "stopping.stop",
                [](auto* r) {
                  for (int i = 0; i < 5000; ++i) {
                    r->mutable_stopping()->add_stop();
                  }
                }},
        BadCase{"ManyUnknownStopIds",
                "stopping.stop_token_ids",
                [](auto* r) {
                  for (int i = 0; i < 5000; ++i) {
                    r->mutable_stopping()->add_stop_token_ids(9999);
                  }
                }},
        BadCase{"UnknownStopId",
                "stopping.stop_token_ids[0]",
                [](auto* r) { r->mutable_stopping()->add_stop_token_ids(9999); }},
        BadCase{"ManyLogprobs",
                "output.logprobs",
                [](auto* r) { r->mutable_output()->set_logprobs(21); }},
        BadCase{"RequestIdWithSpace", "request_id", [](auto* r) { r->set_request_id("a b"); }},
        BadCase{"LongRequestId",
                "request_id",
                [](auto* r) { r->set_request_id(std::string(257, 'a')); }}),
    [](const ::testing::TestParamInfo<BadCase>& param) { return param.param.name; });

TEST(CheckRequestTest, AGoodRequestPasses) {
  EXPECT_TRUE(CheckRequest(TestModel(), Good()).ok());
  GenerateRequest request = Good();
  request.set_model("needle");
  request.set_kv_policy("dense");
  request.mutable_sampling()->set_temperature(0.0f);
  request.mutable_sampling()->set_top_p(1.0f);
  request.mutable_stopping()->set_max_tokens(1);
  EXPECT_TRUE(CheckRequest(TestModel(), request).ok());
}

TEST(CheckRequestTest, SeveralWrongFieldsAreAllNamed) {
  GenerateRequest request = Good();
  request.mutable_sampling()->set_temperature(-1.0f);
  request.mutable_stopping()->set_max_tokens(0);
  EXPECT_EQ(rpc::FieldViolations(CheckRequest(TestModel(), request)).size(), 2u);
}

TEST(CheckRequestTest, AnUnknownModelIsNotFound) {
  GenerateRequest request = Good();
  request.set_model("other");
  const absl::Status status = CheckRequest(TestModel(), request);
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_NE(status.message().find("other"), absl::string_view::npos);
}

// Whether workers serve it they say themselves.
TEST(CheckRequestTest, EveryKvPolicyOfTheGrammarPasses) {
  for (const char* policy : {"",
                             "dense",
                             "fp8",
                             "diffkv",
                             "diffkv:ah=2,w=32",
                             "shadowkv:rank=64,budget=256",
                             "hidden+dense",
                             "hidden8+diffkv",
                             "auto",
                             "tier=balanced"}) {
    GenerateRequest request = Good();
    request.set_kv_policy(policy);
    const absl::Status status = CheckRequest(TestModel(), request);
    EXPECT_TRUE(status.ok()) << policy << ": " << status;
  }
}

TEST(CheckRequestTest, BaselinesAndNonsenseAreBadArgumentsNamingTheField) {
  for (const char* policy :
       {"int4", "kivi", "snapkv:budget=64", "static:share=0.5", "nonsense", "diffkv:w=-1", " "}) {
    GenerateRequest request = Good();
    request.set_kv_policy(policy);
    const absl::Status status = CheckRequest(TestModel(), request);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << policy;
    EXPECT_NE(status.message().find("kv_policy"), absl::string_view::npos) << policy;
  }
}

// Keys that equal the grammar's defaults stay: a worker's calibration may have others.
TEST(CheckRequestTest, KvPoliciesReachTheWorkersAsTheyWereWritten) {
  EXPECT_EQ(*CheckedKvPolicy(""), "dense");
  EXPECT_EQ(*CheckedKvPolicy("diffkv:sinks=4,w=32"), "diffkv:sinks=4,w=32");
  EXPECT_EQ(*CheckedKvPolicy("diffkv:w=64"), "diffkv:w=64");
}

TEST(CheckRequestTest, KvPoliciesAreRefusedForConflictsBetweenWhatTheySayOnly) {
  EXPECT_TRUE(CheckedKvPolicy("diffkv:ah=0").ok());
  EXPECT_TRUE(CheckedKvPolicy("diffkv:low=k8v8").ok());
  EXPECT_EQ(CheckedKvPolicy("diffkv:ah=1,al=2").status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace baton::router
