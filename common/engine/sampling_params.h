// How tokens of a request are drawn and when its sequences end; every field resolved, no "unset".
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace baton::engine {

// Sequences of one request: each costs a draw and a commit entry, whatever a caller asks for.
inline constexpr int32_t kMaxSequences = 1024;

struct SamplingParams {
  // 0 means greedy: the highest logit, ties to the lowest id.
  float temperature = 1.0f;
  float top_p = 1.0f;  // (0, 1]
  int32_t top_k = 0;   // 0 = all
  float min_p = 0.0f;  // [0, 1)
  float presence_penalty = 0.0f;
  float frequency_penalty = 0.0f;
  float repetition_penalty = 1.0f;  // > 0; counts prompt and generated tokens
  std::vector<std::pair<int32_t, float>> logit_bias;
  // A draw depends only on (seed, sequence index, position), so every worker draws the same.
  uint64_t seed = 0;
  int32_t n = 1;
  int32_t max_tokens = 0;  // >= 1
  int32_t min_tokens = 0;  // stop ids are masked until this many tokens
  // Ids that end a sequence: the model's stop ids (unless ignore_eos) and the request's own. The
  // stop token itself is delivered in Finished, not as text.
  std::vector<int32_t> stop_token_ids;
  // Unset: no logprobs. k: the chosen token's logprob and the k most likely tokens.
  std::optional<int32_t> logprobs;
};

}  // namespace baton::engine
