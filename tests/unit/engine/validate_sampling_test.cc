#include "common/engine/sampling/validate_sampling.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

namespace baton::engine {
namespace {

using ::testing::HasSubstr;

constexpr int32_t kVocab = 100;

SamplingParams Valid() {
  SamplingParams params;
  params.max_tokens = 4;
  return params;
}

TEST(ValidateSamplingTest, AcceptsDefaultsAndLimits) {
  EXPECT_TRUE(ValidateSampling(Valid(), kVocab).ok());
  SamplingParams params = Valid();
  params.temperature = 0.0f;
  params.min_tokens = 4;
  params.logprobs = 0;
  params.logit_bias = {{0, -100.0f}, {99, 100.0f}};
  params.stop_token_ids = {0, 99};
  EXPECT_TRUE(ValidateSampling(params, kVocab).ok());
}

TEST(ValidateSamplingTest, EveryBadFieldIsRefusedByName) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  using Change = std::function<void(SamplingParams&)>;
  const std::vector<std::pair<std::string, Change>> cases = {
      {"temperature", [&](auto& p) { p.temperature = -0.1f; }},
      {"temperature", [&](auto& p) { p.temperature = nan; }},
      {"top_p", [&](auto& p) { p.top_p = 0.0f; }},
      {"top_p", [&](auto& p) { p.top_p = 1.1f; }},
      {"top_p", [&](auto& p) { p.top_p = nan; }},
      {"top_k", [&](auto& p) { p.top_k = -1; }},
      {"min_p", [&](auto& p) { p.min_p = 1.0f; }},
      {"min_p", [&](auto& p) { p.min_p = nan; }},
      {"presence_penalty", [&](auto& p) { p.presence_penalty = nan; }},
      {"frequency_penalty", [&](auto& p) { p.frequency_penalty = nan; }},
      {"repetition_penalty", [&](auto& p) { p.repetition_penalty = 0.0f; }},
      {"repetition_penalty", [&](auto& p) { p.repetition_penalty = nan; }},
      {"n is 0", [&](auto& p) { p.n = 0; }},
      {"n is 1025", [&](auto& p) { p.n = 1025; }},
      {"max_tokens", [&](auto& p) { p.max_tokens = 0; }},
      {"min_tokens", [&](auto& p) { p.min_tokens = 5; }},
      {"min_tokens", [&](auto& p) { p.min_tokens = -1; }},
      {"logprobs", [&](auto& p) { p.logprobs = -1; }},
      {"logprobs", [&](auto& p) { p.logprobs = 129; }},
      {"logit_bias", [&](auto& p) { p.logit_bias = {{100, 1.0f}}; }},
      {"logit_bias", [&](auto& p) { p.logit_bias = {{1, nan}}; }},
      {"stop_token_ids", [&](auto& p) { p.stop_token_ids = {-1}; }},
      {"stop_token_ids", [&](auto& p) { p.stop_token_ids.assign(101, 1); }},
  };
  for (size_t i = 0; i < cases.size(); ++i) {
    SamplingParams params = Valid();
    cases[i].second(params);
    const absl::Status status = ValidateSampling(params, kVocab);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << "case " << i;
    EXPECT_THAT(std::string(status.message()), HasSubstr(cases[i].first)) << "case " << i;
  }
}

}  // namespace
}  // namespace baton::engine
