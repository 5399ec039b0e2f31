#include "common/engine/sampling/logprobs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace baton::engine {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

TEST(LogprobsTest, AreNormalisedAndSorted) {
  const std::vector<float> logits = {1.0f, 3.0f, 3.0f, -2.0f};
  TokenOutput output;
  output.token_id = 3;
  FillLogprobs(logits, 4, output);
  ASSERT_THAT(output.top_logprobs, SizeIs(4));
  EXPECT_EQ(output.top_logprobs[0].first, 1);
  EXPECT_EQ(output.top_logprobs[1].first, 2);
  EXPECT_EQ(output.top_logprobs[2].first, 0);
  double sum = 0.0;
  for (const auto& [id, logprob] : output.top_logprobs) {
    sum += std::exp(static_cast<double>(logprob));
  }
  EXPECT_NEAR(sum, 1.0, 1e-6);
  EXPECT_EQ(output.logprob, output.top_logprobs[3].second);
}

TEST(LogprobsTest, ZeroTopTokensStillGivesTheChosenOne) {
  TokenOutput output;
  output.token_id = 0;
  FillLogprobs(std::vector<float>{0.0f, 0.0f}, 0, output);
  EXPECT_NEAR(output.logprob, std::log(0.5f), 1e-6f);
  EXPECT_THAT(output.top_logprobs, IsEmpty());
}

TEST(LogprobsTest, NeverNaN) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinity = std::numeric_limits<float>::infinity();
  for (const std::vector<float>& logits : {std::vector<float>{nan, 1.0f, 2.0f},
                                           std::vector<float>{infinity, infinity, 0.0f},
                                           std::vector<float>{nan, -infinity, nan}}) {
    TokenOutput output;
    FillLogprobs(logits, 9, output);
    EXPECT_FALSE(std::isnan(output.logprob));
    ASSERT_THAT(output.top_logprobs, SizeIs(3));
    for (const auto& [id, logprob] : output.top_logprobs) {
      EXPECT_FALSE(std::isnan(logprob));
    }
  }
}

}  // namespace
}  // namespace baton::engine
