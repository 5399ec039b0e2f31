#include "common/engine/sampling/any_token.h"

#include <cmath>
#include <cstdint>
#include <set>

#include "gtest/gtest.h"

#include "common/engine/request.h"
#include "common/engine/sampling/sampler.h"
#include "common/engine/sampling_params.h"

namespace baton::engine {
namespace {

constexpr int32_t kVocab = 50;

TokenOutput Draw(const SamplingParams& params, int64_t position, int32_t sequence = 0) {
  SampleInput input;
  input.params = &params;
  input.key = {.seed = params.seed, .sequence_index = sequence, .position = position};
  return DrawAnyToken(input, kVocab);
}

TEST(AnyTokenTest, DependsOnSeedSequenceAndPosition) {
  SamplingParams params;
  params.seed = 7;
  std::set<int32_t> tokens;
  int same_in_another_sequence = 0;
  for (int64_t position = 0; position < 500; ++position) {
    const int32_t token = Draw(params, position).token_id;
    EXPECT_EQ(token, Draw(params, position).token_id);
    same_in_another_sequence += token == Draw(params, position, 1).token_id ? 1 : 0;
    tokens.insert(token);
  }
  EXPECT_EQ(tokens.size(), static_cast<size_t>(kVocab));
  EXPECT_LT(same_in_another_sequence, 50);
  EXPECT_GE(*tokens.begin(), 0);
  EXPECT_LT(*tokens.rbegin(), kVocab);
}

TEST(AnyTokenTest, IsNoStopToken) {
  SamplingParams params;
  params.stop_token_ids = {0, 1, 2, 10, 49};
  for (int64_t position = 0; position < 500; ++position) {
    for (const int32_t stop : params.stop_token_ids) {
      ASSERT_NE(Draw(params, position).token_id, stop);
    }
  }
}

TEST(AnyTokenTest, EndsThoughEveryTokenStops) {
  SamplingParams params;
  for (int32_t token = 0; token < kVocab; ++token) {
    params.stop_token_ids.push_back(token);
  }
  EXPECT_LT(Draw(params, 3).token_id, kVocab);
}

TEST(AnyTokenTest, LogprobsAreThoseOfOneTokenAmongAll) {
  SamplingParams params;
  EXPECT_TRUE(Draw(params, 3).top_logprobs.empty());
  params.logprobs = 5;
  const TokenOutput output = Draw(params, 3);
  EXPECT_FLOAT_EQ(output.logprob, -std::log(50.0f));
  ASSERT_EQ(output.top_logprobs.size(), 1U);
  EXPECT_EQ(output.top_logprobs[0].first, output.token_id);
}

}  // namespace
}  // namespace baton::engine
