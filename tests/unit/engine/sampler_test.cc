#include "common/engine/sampling/sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <random>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "common/engine/sampling/top_logits.h"
#include "kernels/ops/params.h"
#include "kernels/ops/top_logits_host.h"

namespace baton::engine {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

SamplingParams Greedy() {
  SamplingParams params;
  params.temperature = 0.0f;
  params.max_tokens = 8;
  return params;
}

absl::StatusOr<TokenOutput> Draw(const std::vector<float>& logits,
                                 const SamplingParams& params,
                                 int64_t position = 0,
                                 int32_t generated_tokens = 0,
                                 const PenaltyState& penalties = {}) {
  SamplerScratch scratch;
  return SampleToken({.logits = logits,
                      .params = &params,
                      .penalties = &penalties,
                      .generated_tokens = generated_tokens,
                      .key = {.seed = params.seed, .sequence_index = 0, .position = position}},
                     scratch);
}

TEST(SamplerTest, GreedyTakesTheHighestAndTiesGoToTheLowestId) {
  EXPECT_EQ(Draw({1.0f, 5.0f, 5.0f, 2.0f}, Greedy())->token_id, 1);
  EXPECT_EQ(Draw({-3.0f, -7.0f}, Greedy())->token_id, 0);
}

TEST(SamplerTest, NaNAndInfinityNeverLeaveTheVocabulary) {
  EXPECT_EQ(Draw({kNaN, 1.0f, kNaN, 2.0f}, Greedy())->token_id, 3);
  EXPECT_EQ(Draw({0.0f, kInfinity, 1.0f}, Greedy())->token_id, 1);
  SamplingParams random;
  for (int position = 0; position < 200; ++position) {
    EXPECT_EQ(Draw({kNaN, 1.0f, -kInfinity}, random, position)->token_id, 1);
    EXPECT_EQ(Draw({0.0f, kInfinity, 1.0f}, random, position)->token_id, 1);
  }
}

TEST(SamplerTest, NoUsableLogitIsAnInternalError) {
  for (const float temperature : {0.0f, 1.0f}) {
    SamplingParams params = Greedy();
    params.temperature = temperature;
    EXPECT_EQ(Draw({kNaN, -kInfinity, kNaN}, params).status().code(), absl::StatusCode::kInternal);
    params.stop_token_ids = {0};
    params.min_tokens = 1;
    EXPECT_EQ(Draw({1.0f}, params).status().code(), absl::StatusCode::kInternal);
  }
}

TEST(SamplerTest, BiasIsAddedBeforeTheChoice) {
  SamplingParams params = Greedy();
  params.logit_bias = {{2, 10.0f}, {0, -1.0f}};
  EXPECT_EQ(Draw({3.0f, 2.5f, 0.0f}, params)->token_id, 2);
  params.logit_bias = {{0, -1.0f}};
  EXPECT_EQ(Draw({3.0f, 2.5f, 0.0f}, params)->token_id, 1);
}

TEST(SamplerTest, StopTokensAreMaskedUntilMinTokens) {
  SamplingParams params = Greedy();
  params.stop_token_ids = {1};
  params.min_tokens = 2;
  EXPECT_EQ(Draw({0.0f, 9.0f, 1.0f}, params, 0, 0)->token_id, 2);
  EXPECT_EQ(Draw({0.0f, 9.0f, 1.0f}, params, 0, 1)->token_id, 2);
  EXPECT_EQ(Draw({0.0f, 9.0f, 1.0f}, params, 0, 2)->token_id, 1);
}

TEST(SamplerTest, PenaltiesApplyAfterBias) {
  PenaltyState penalties;
  penalties.Record(0);
  SamplingParams params = Greedy();
  params.logit_bias = {{0, 2.0f}};
  params.repetition_penalty = 2.0f;
  // (2 + 2) / 2 = 2 < 2.5; without the bias inside, 2 / 2 + 2 = 3 would win.
  EXPECT_EQ(Draw({2.0f, 2.5f}, params, 0, 1, penalties)->token_id, 1);
}

TEST(SamplerTest, LogprobsComeFromRawLogits) {
  SamplingParams params = Greedy();
  params.logit_bias = {{0, 100.0f}};
  params.logprobs = 1;
  const auto output = Draw({0.0f, 0.0f, 0.0f, 1.0f}, params);
  ASSERT_TRUE(output.ok());
  EXPECT_EQ(output->token_id, 0);
  EXPECT_NEAR(output->logprob, -std::log(3.0f + std::exp(1.0f)), 1e-6f);
  ASSERT_EQ(output->top_logprobs.size(), 1u);
  EXPECT_EQ(output->top_logprobs[0].first, 3);
}

TEST(SamplerTest, ADrawDependsOnlyOnItsKey) {
  SamplingParams params;
  params.seed = 42;
  const std::vector<float> logits(50, 0.0f);
  SamplerScratch used;
  used.logits.assign(999, 7.0f);
  used.candidates.resize(999);
  const PenaltyState penalties;
  for (int64_t position = 0; position < 50; ++position) {
    const auto again = SampleToken({.logits = logits,
                                    .params = &params,
                                    .penalties = &penalties,
                                    .generated_tokens = 0,
                                    .key = {.seed = 42, .sequence_index = 0, .position = position}},
                                   used);
    EXPECT_EQ(again->token_id, Draw(logits, params, position)->token_id);
  }
}

// What a device lists of a row.
struct TopLists {
  std::vector<int32_t> ids;
  std::vector<float> values;
  float log_sum = 0.0f;

  TopLists(const std::vector<float>& logits, int32_t count)
      : ids(static_cast<size_t>(count)), values(static_cast<size_t>(count)) {
    const absl::Status status =
        kernels::TopLogitsOnHost({},
                                 {.logits = logits.data(),
                                  .rows = 1,
                                  .vocab = static_cast<int64_t>(logits.size()),
                                  .count = count,
                                  .ids = ids.data(),
                                  .values = values.data(),
                                  .log_sums = &log_sum});
    EXPECT_TRUE(status.ok()) << status;
    std::erase(ids, -1);
    values.resize(ids.size());
  }
  TopLogits view() const { return {.ids = ids, .values = values, .log_sum = log_sum}; }
};

TEST(SamplerTest, TheTopOfARowGivesTheTokensOfTheRow) {
  constexpr uint32_t kSeed = 20261123;
  std::mt19937 random(kSeed);
  std::normal_distribution<float> normal(0.0f, 3.0f);
  const PenaltyState penalties;
  SamplerScratch scratch;
  for (int trial = 0; trial < 300; ++trial) {
    std::vector<float> logits(1 + random() % 500);
    for (float& logit : logits) {
      logit =
          trial % 3 == 0 ? std::round(normal(random)) : normal(random);  // with and without ties
    }
    logits[random() % logits.size()] = trial % 5 == 0 ? kNaN : trial % 7 == 0 ? kInfinity : 1.0f;
    SamplingParams params;
    params.temperature = trial % 4 == 0 ? 0.0f : 0.7f;
    params.top_k = 1 + static_cast<int32_t>(random() % 40);
    params.top_p = trial % 2 == 0 ? 1.0f : 0.8f;
    params.min_p = trial % 6 == 0 ? 0.1f : 0.0f;
    params.logprobs = static_cast<int32_t>(random() % 6);
    const std::optional<int32_t> needed = TopLogitsNeeded(params, /*generated_tokens=*/0);
    ASSERT_TRUE(needed.has_value());
    const TopLists top(logits, *needed);
    const absl::StatusOr<TokenOutput> want = Draw(logits, params, trial);
    const absl::StatusOr<TokenOutput> got = SampleToken({.logits = {},
                                                         .top = top.view(),
                                                         .params = &params,
                                                         .penalties = &penalties,
                                                         .generated_tokens = 0,
                                                         .key = {.position = trial}},
                                                        scratch);
    ASSERT_EQ(got.status().code(), want.status().code()) << got.status();
    if (!want.ok()) {
      continue;
    }
    EXPECT_EQ(got->token_id, want->token_id) << "trial " << trial << ", seed " << kSeed;
    if (got->logprob != want->logprob) {  // infinite ones have no difference
      EXPECT_NEAR(got->logprob, want->logprob, 1e-5f) << "trial " << trial << ", seed " << kSeed;
    }
    ASSERT_EQ(got->top_logprobs.size(), want->top_logprobs.size());
    for (size_t i = 0; i < got->top_logprobs.size(); ++i) {
      EXPECT_EQ(got->top_logprobs[i].first, want->top_logprobs[i].first) << "trial " << trial;
    }
  }
}

TEST(SamplerTest, WholeRowsAreAskedForWhereATopIsNotEnough) {
  SamplingParams params = Greedy();
  EXPECT_EQ(TopLogitsNeeded(params, 0), 1);
  params.logprobs = 7;
  EXPECT_EQ(TopLogitsNeeded(params, 0), 7);
  params.min_tokens = 3;
  EXPECT_EQ(TopLogitsNeeded(params, 2), std::nullopt);
  EXPECT_EQ(TopLogitsNeeded(params, 3), 7);
  params.logit_bias = {{1, 1.0f}};
  EXPECT_EQ(TopLogitsNeeded(params, 3), std::nullopt);
  params = {};
  EXPECT_EQ(TopLogitsNeeded(params, 0), std::nullopt) << "every token may be drawn";
  params.top_k = 40;
  EXPECT_EQ(TopLogitsNeeded(params, 0), 40);
  params.top_k = kernels::kMaxTopLogits + 1;
  EXPECT_EQ(TopLogitsNeeded(params, 0), std::nullopt);
  params.top_k = 40;
  params.repetition_penalty = 1.1f;
  EXPECT_EQ(TopLogitsNeeded(params, 0), std::nullopt);
}

// Pearson's chi-square of 40,000 draws against the expected probabilities. With a fixed seed the
// result is a constant; the bound is the 99.99 % quantile.
double ChiSquare(const std::vector<float>& logits,
                 const SamplingParams& params,
                 const std::vector<double>& expected) {
  constexpr int kDraws = 40000;
  std::vector<int> counts(logits.size(), 0);
  for (int64_t position = 0; position < kDraws; ++position) {
    ++counts[static_cast<size_t>(Draw(logits, params, position)->token_id)];
  }
  double sum = 0.0;
  for (size_t i = 0; i < expected.size(); ++i) {
    if (expected[i] == 0.0) {
      EXPECT_EQ(counts[i], 0) << "token " << i << " must not be drawn";
      continue;
    }
    const double difference = counts[i] - expected[i] * kDraws;
    sum += difference * difference / (expected[i] * kDraws);
  }
  return sum;
}

TEST(SamplerTest, DrawsFollowTheSoftmax) {
  const std::vector<double> expected = {0.4, 0.3, 0.15, 0.1, 0.05};
  std::vector<float> logits;
  for (const double p : expected) {
    logits.push_back(static_cast<float>(std::log(p)) + 3.0f);
  }
  for (const uint64_t seed : {uint64_t{1}, uint64_t{2}, uint64_t{0xdeadbeef12345678}}) {
    SamplingParams params;
    params.seed = seed;
    EXPECT_LT(ChiSquare(logits, params, expected), 23.51) << "seed " << seed;  // 4 degrees
  }
}

TEST(SamplerTest, DrawsFollowTemperatureAndFilters) {
  const std::vector<float> logits = {
      std::log(0.4f), std::log(0.3f), std::log(0.2f), std::log(0.1f)};
  SamplingParams params;
  params.seed = 9;
  params.temperature = 0.5f;
  EXPECT_LT(ChiSquare(logits, params, {16.0 / 30, 9.0 / 30, 4.0 / 30, 1.0 / 30}), 21.11);
  params.temperature = 1.0f;
  params.top_k = 3;
  EXPECT_LT(ChiSquare(logits, params, {4.0 / 9, 3.0 / 9, 2.0 / 9, 0.0}), 18.42);
  params.top_k = 0;
  params.top_p = 0.65f;
  EXPECT_LT(ChiSquare(logits, params, {4.0 / 7, 3.0 / 7, 0.0, 0.0}), 15.14);
  params.top_p = 1.0f;
  params.min_p = 0.45f;
  EXPECT_LT(ChiSquare(logits, params, {4.0 / 9, 3.0 / 9, 2.0 / 9, 0.0}), 18.42);
}

}  // namespace
}  // namespace baton::engine
