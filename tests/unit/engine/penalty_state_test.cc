#include "common/engine/sampling/penalty_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <vector>

namespace baton::engine {
namespace {

using ::testing::ElementsAre;

TEST(TokenBitmapTest, SetsOneBitPerToken) {
  const std::vector<int32_t> tokens = {0, 9, 9, 15};
  EXPECT_THAT(MakeTokenBitmap(tokens, 17), ElementsAre(0x01, 0x82, 0x00));
}

TEST(PenaltyStateTest, NoPenaltyLeavesLogitsAlone) {
  PenaltyState state;
  state.Record(1);
  std::vector<float> logits = {1.0f, 2.0f};
  state.Apply({}, logits);
  EXPECT_THAT(logits, ElementsAre(1.0f, 2.0f));
  EXPECT_FALSE(HasPenalties({}));
}

TEST(PenaltyStateTest, RepetitionCountsPromptAndGeneratedTokensOnce) {
  const std::vector<int32_t> prompt = {0, 1, 1};
  PenaltyState state(std::make_shared<const TokenBitmap>(MakeTokenBitmap(prompt, 5)));
  state.Record(1);  // in the prompt as well: penalised once
  state.Record(2);
  state.Record(2);
  std::vector<float> logits = {4.0f, -4.0f, 6.0f, 8.0f, -8.0f};
  SamplingParams params;
  params.repetition_penalty = 2.0f;
  state.Apply(params, logits);
  EXPECT_THAT(logits, ElementsAre(2.0f, -8.0f, 3.0f, 8.0f, -8.0f));
}

TEST(PenaltyStateTest, PresenceAndFrequencyCountGeneratedTokensOnly) {
  const std::vector<int32_t> prompt = {0};
  PenaltyState state(std::make_shared<const TokenBitmap>(MakeTokenBitmap(prompt, 3)));
  state.Record(1);
  state.Record(1);
  state.Record(1);
  std::vector<float> logits = {1.0f, 1.0f, 1.0f};
  SamplingParams params;
  params.presence_penalty = 0.5f;
  params.frequency_penalty = 0.25f;
  state.Apply(params, logits);
  EXPECT_THAT(logits, ElementsAre(1.0f, -0.25f, 1.0f));
  EXPECT_EQ(state.count(1), 3);
  EXPECT_EQ(state.count(2), 0);
}

}  // namespace
}  // namespace baton::engine
