#include "common/scheduling/step_planner.h"

#include <algorithm>

#include "common/base/check.h"

namespace baton::scheduling {
namespace {

PrefillChunk NextChunk(const PromptProgress& prompt, size_t prompt_index, int64_t max_tokens) {
  BATON_CHECK(prompt.computed_tokens >= 0 && prompt.computed_tokens < prompt.prompt_tokens);
  const int64_t left = prompt.prompt_tokens - prompt.computed_tokens;
  const int64_t count = std::min(left, max_tokens);
  return {.prompt_index = prompt_index,
          .token_begin = prompt.computed_tokens,
          .token_count = static_cast<int32_t>(count),
          .is_final = count == left};
}

}  // namespace

int32_t StepPlan::prefill_tokens() const {
  int32_t total = 0;
  for (const PrefillChunk& chunk : chunks) {
    total += chunk.token_count;
  }
  return total;
}

StepPlan PlanStep(const StepLimits& limits,
                  int32_t decoding_sequences,
                  std::span<const PromptProgress> prompts) {
  BATON_CHECK(limits.step_token_budget >= 1 && limits.prefill_chunk_tokens >= 1);
  StepPlan plan;
  plan.decode_rows = std::min(decoding_sequences, limits.step_token_budget);
  int32_t budget = limits.step_token_budget - plan.decode_rows;
  for (size_t i = 0; i < prompts.size() && budget > 0; ++i) {
    plan.chunks.push_back(NextChunk(prompts[i], i, std::min(budget, limits.prefill_chunk_tokens)));
    budget -= plan.chunks.back().token_count;
  }
  return plan;
}

}  // namespace baton::scheduling
