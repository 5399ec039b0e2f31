#include "common/engine/sampling/candidates.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

namespace baton::engine {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr float kNever = -std::numeric_limits<float>::infinity();

std::vector<int32_t> Selected(const SamplingParams& params, const std::vector<float>& logits) {
  std::vector<Candidate> candidates;
  SelectCandidates(params, logits, candidates);
  std::vector<int32_t> ids;
  for (const Candidate& candidate : candidates) {
    ids.push_back(candidate.token_id);
  }
  return ids;
}

SamplingParams Params(int32_t top_k, float top_p, float min_p) {
  SamplingParams params;
  params.top_k = top_k;
  params.top_p = top_p;
  params.min_p = min_p;
  return params;
}

// Probabilities 0.5, 0.25, 0.125, 0.125 for tokens 2, 0, 1, 3.
const std::vector<float> kHalves = {
    std::log(0.25f), std::log(0.125f), std::log(0.5f), std::log(0.125f)};

TEST(CandidatesTest, WithoutFiltersEveryPossibleTokenRemains) {
  EXPECT_THAT(Selected(Params(0, 1.0f, 0.0f), {0.0f, kNever, 1.0f}), ElementsAre(0, 2));
  EXPECT_THAT(Selected(Params(0, 1.0f, 0.0f), {kNever, kNever}), IsEmpty());
  EXPECT_THAT(Selected(Params(3, 0.5f, 0.5f), {kNever, kNever}), IsEmpty());
}

TEST(CandidatesTest, TopKKeepsTheMostLikelyAndBreaksTiesByLowerId) {
  EXPECT_THAT(Selected(Params(1, 1.0f, 0.0f), kHalves), ElementsAre(2));
  EXPECT_THAT(Selected(Params(3, 1.0f, 0.0f), kHalves), ElementsAre(2, 0, 1));
  EXPECT_THAT(Selected(Params(99, 1.0f, 0.0f), kHalves), ElementsAre(2, 0, 1, 3));
}

TEST(CandidatesTest, TopPKeepsTheFewestThatReachIt) {
  EXPECT_THAT(Selected(Params(0, 0.01f, 0.0f), kHalves), ElementsAre(2));
  EXPECT_THAT(Selected(Params(0, 0.49f, 0.0f), kHalves), ElementsAre(2));
  EXPECT_THAT(Selected(Params(0, 0.6f, 0.0f), kHalves), ElementsAre(2, 0));
  EXPECT_THAT(Selected(Params(0, 0.8f, 0.0f), kHalves), ElementsAre(2, 0, 1));
}

TEST(CandidatesTest, TopPLooksAtWhatTopKLeft) {
  // Of the two that remain, token 2 has 2/3.
  EXPECT_THAT(Selected(Params(2, 0.6f, 0.0f), kHalves), ElementsAre(2));
  EXPECT_THAT(Selected(Params(2, 0.7f, 0.0f), kHalves), ElementsAre(2, 0));
}

TEST(CandidatesTest, MinPIsRelativeToTheMostLikely) {
  EXPECT_THAT(Selected(Params(0, 1.0f, 0.4f), kHalves), ElementsAre(0, 2));
  EXPECT_THAT(Selected(Params(0, 1.0f, 0.2f), kHalves), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(Selected(Params(0, 1.0f, 0.99f), kHalves), ElementsAre(2));
}

TEST(CandidatesTest, TemperatureSharpens) {
  SamplingParams params = Params(0, 0.7f, 0.0f);
  params.temperature = 0.5f;  // probabilities 16/22, 4/22, 1/22, 1/22
  EXPECT_THAT(Selected(params, kHalves), ElementsAre(2));
  params.temperature = 1e-30f;
  params.top_p = 1.0f;
  params.min_p = 0.5f;
  EXPECT_THAT(Selected(params, kHalves), ElementsAre(2));
}

TEST(CandidatesTest, TopPOverALargeVocabularyEqualsAFullSort) {
  const uint32_t seed = 3;
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0f, 1.0f);
  for (const float top_p : {0.05f, 0.5f, 0.9f, 0.999f}) {
    std::vector<float> logits(5000);
    std::generate(logits.begin(), logits.end(), [&] { return normal(random); });
    std::vector<int32_t> order(logits.size());
    for (size_t i = 0; i < order.size(); ++i) {
      order[i] = static_cast<int32_t>(i);
    }
    std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
      return logits[static_cast<size_t>(a)] > logits[static_cast<size_t>(b)];
    });
    double total = 0.0;
    for (const float logit : logits) {
      total += std::exp(static_cast<double>(logit));
    }
    size_t keep = 0;
    for (double sum = 0.0; sum < static_cast<double>(top_p) * total; ++keep) {
      sum += std::exp(static_cast<double>(logits[static_cast<size_t>(order[keep])]));
    }
    order.resize(keep);
    EXPECT_EQ(Selected(Params(0, top_p, 0.0f), logits), order) << "top_p " << top_p;
  }
}

TEST(CandidatesTest, DrawWalksTheCumulativeDistribution) {
  const std::vector<Candidate> candidates = {{.token_id = 7, .logit = 0, .weight = 1.0},
                                             {.token_id = 3, .logit = 0, .weight = 0.0},
                                             {.token_id = 5, .logit = 0, .weight = 3.0}};
  EXPECT_EQ(DrawCandidate(candidates, 0.0), 7);
  EXPECT_EQ(DrawCandidate(candidates, 0.2499), 7);
  EXPECT_EQ(DrawCandidate(candidates, 0.25), 5);
  EXPECT_EQ(DrawCandidate(candidates, 0.9999999999), 5);
}

}  // namespace
}  // namespace baton::engine
