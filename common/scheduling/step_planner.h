// Chooses the rows of the next engine step. A pure function: the engine describes its sequences,
// the planner answers with a plan, and nothing else changes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace baton::scheduling {

// Bounds of one step.
struct StepLimits {
  // Rows (tokens) of a step, prompt and decode together; >= 1.
  int32_t step_token_budget = 4096;
  // Prompt tokens of one sequence in a step; >= 1.
  int32_t prefill_chunk_tokens = 2048;
};

// A prompt that is not fully prefilled.
struct PromptProgress {
  int64_t prompt_tokens = 0;
  int64_t computed_tokens = 0;  // in [0, prompt_tokens)
};

// A slice of one prompt: tokens [token_begin, token_begin + token_count).
struct PrefillChunk {
  size_t prompt_index = 0;  // into the planner's `prompts`
  int64_t token_begin = 0;
  int32_t token_count = 0;
  bool is_final = false;  // ends with the prompt's last token
};

struct StepPlan {
  // The first `decode_rows` decoding sequences get one row each.
  int32_t decode_rows = 0;
  std::vector<PrefillChunk> chunks;

  int32_t prefill_tokens() const;
  bool empty() const { return decode_rows == 0 && chunks.empty(); }
};

// Decode rows come first, one per decoding sequence, because a waiting token of a running stream is
// seen by a user; then prompt chunks in the order of `prompts` (first in, first out), packed
// without padding until the budget is spent. A prompt that gets no chunk leaves none to a later
// prompt, so nobody overtakes. With more decoding sequences than budget the caller rotates them
// between steps.
StepPlan PlanStep(const StepLimits& limits,
                  int32_t decoding_sequences,
                  std::span<const PromptProgress> prompts);

}  // namespace baton::scheduling
