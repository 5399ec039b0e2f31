#include "common/scheduling/step_planner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace baton::scheduling {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

TEST(StepPlannerTest, NothingToDoIsAnEmptyPlan) { EXPECT_TRUE(PlanStep({}, 0, {}).empty()); }

TEST(StepPlannerTest, DecodeRowsComeBeforePromptTokens) {
  const PromptProgress prompts[] = {{.prompt_tokens = 100, .computed_tokens = 0}};
  const StepPlan plan =
      PlanStep({.step_token_budget = 10, .prefill_chunk_tokens = 100}, 4, prompts);
  EXPECT_EQ(plan.decode_rows, 4);
  ASSERT_THAT(plan.chunks, SizeIs(1));
  EXPECT_EQ(plan.chunks[0].token_count, 6);
  EXPECT_FALSE(plan.chunks[0].is_final);
}

TEST(StepPlannerTest, MoreDecodingSequencesThanBudgetFillTheStep) {
  const PromptProgress prompts[] = {{.prompt_tokens = 5, .computed_tokens = 0}};
  const StepPlan plan = PlanStep({.step_token_budget = 8, .prefill_chunk_tokens = 8}, 20, prompts);
  EXPECT_EQ(plan.decode_rows, 8);
  EXPECT_THAT(plan.chunks, IsEmpty());
}

TEST(StepPlannerTest, SeveralPromptsShareAStepWithoutPadding) {
  const PromptProgress prompts[] = {{.prompt_tokens = 5, .computed_tokens = 2},
                                    {.prompt_tokens = 4, .computed_tokens = 0},
                                    {.prompt_tokens = 9, .computed_tokens = 0}};
  const StepPlan plan = PlanStep({.step_token_budget = 10, .prefill_chunk_tokens = 8}, 0, prompts);
  ASSERT_THAT(plan.chunks, SizeIs(3));
  EXPECT_EQ(plan.chunks[0].token_begin, 2);
  EXPECT_EQ(plan.chunks[0].token_count, 3);
  EXPECT_TRUE(plan.chunks[0].is_final);
  EXPECT_EQ(plan.chunks[1].token_count, 4);
  EXPECT_TRUE(plan.chunks[1].is_final);
  EXPECT_EQ(plan.chunks[2].prompt_index, 2u);
  EXPECT_EQ(plan.chunks[2].token_count, 3);
  EXPECT_FALSE(plan.chunks[2].is_final);
  EXPECT_EQ(plan.prefill_tokens(), 10);
}

TEST(StepPlannerTest, ChunkIsBoundedPerSequence) {
  const PromptProgress prompts[] = {{.prompt_tokens = 50, .computed_tokens = 48},
                                    {.prompt_tokens = 50, .computed_tokens = 0}};
  const StepPlan plan =
      PlanStep({.step_token_budget = 100, .prefill_chunk_tokens = 16}, 0, prompts);
  ASSERT_THAT(plan.chunks, SizeIs(2));
  EXPECT_EQ(plan.chunks[0].token_count, 2);
  EXPECT_EQ(plan.chunks[1].token_count, 16);
}

TEST(StepPlannerTest, RandomPlansKeepEveryBoundAndEndEveryPrompt) {
  const uint32_t seed = 20240611;
  SCOPED_TRACE(testing::Message() << "seed " << seed
                                  << "; repeat with --gtest_filter=*RandomPlans*");
  std::mt19937 random(seed);
  const auto draw = [&](int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(random);
  };
  for (int round = 0; round < 300; ++round) {
    const StepLimits limits{.step_token_budget = draw(1, 64), .prefill_chunk_tokens = draw(1, 64)};
    std::vector<PromptProgress> prompts(static_cast<size_t>(draw(0, 8)));
    for (PromptProgress& prompt : prompts) {
      prompt.prompt_tokens = draw(1, 200);
    }
    int steps = 0;
    while (!prompts.empty()) {
      ASSERT_LT(++steps, 5000);
      const int decoding = draw(0, limits.step_token_budget - 1);
      const StepPlan plan = PlanStep(limits, decoding, prompts);
      ASSERT_EQ(plan.decode_rows, decoding);
      ASSERT_LE(plan.decode_rows + plan.prefill_tokens(), limits.step_token_budget);
      ASSERT_GE(plan.prefill_tokens(), 1);
      for (size_t i = 0; i < plan.chunks.size(); ++i) {
        const PrefillChunk& chunk = plan.chunks[i];
        ASSERT_EQ(chunk.prompt_index, i);
        ASSERT_GE(chunk.token_count, 1);
        ASSERT_LE(chunk.token_count, limits.prefill_chunk_tokens);
        ASSERT_EQ(chunk.token_begin, prompts[i].computed_tokens);
        prompts[i].computed_tokens += chunk.token_count;
        ASSERT_EQ(chunk.is_final, prompts[i].computed_tokens == prompts[i].prompt_tokens);
      }
      std::erase_if(prompts, [](const PromptProgress& prompt) {
        return prompt.computed_tokens == prompt.prompt_tokens;
      });
    }
  }
}

}  // namespace
}  // namespace baton::scheduling
