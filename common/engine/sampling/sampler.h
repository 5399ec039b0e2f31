// Draws the next token of a sequence from its logits; the one sampler of both roles.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/statusor.h"

#include "common/engine/request.h"
#include "common/engine/sampling/candidates.h"
#include "common/engine/sampling/penalty_state.h"
#include "common/engine/sampling/philox.h"
#include "common/engine/sampling/top_logits.h"
#include "common/engine/sampling_params.h"

namespace baton::engine {

// Memory that a thread reuses from draw to draw.
struct SamplerScratch {
  std::vector<float> logits;
  std::vector<Candidate> candidates;
};

struct SampleInput {
  std::span<const float> logits;  // [vocab], raw; empty: `top` has what the draw looks at
  TopLogits top = {};             // as many as TopLogitsNeeded, or more
  const SamplingParams* params = nullptr;
  const PenaltyState* penalties = nullptr;
  int32_t generated_tokens = 0;  // before this draw; min_tokens looks at it
  DrawKey key;
};

// How many of the most likely tokens a draw looks at, at most kernels::kMaxTopLogits. Nothing if it
// looks at more: when it changes logits, or draws from all of them.
std::optional<int32_t> TopLogitsNeeded(const SamplingParams& params, int32_t generated_tokens);

// Order: logit bias, penalties, min_tokens mask, temperature, top_k, top_p, min_p, draw;
// temperature 0 takes the highest adjusted logit, ties to the lowest id. Logprobs, when asked for,
// come from the raw logits. A NaN logit is never drawn. The result depends on `input` alone, so it
// is the same on every worker and in every batch. kInternal when no token has a usable logit.
// Thread-safe for different scratch.
absl::StatusOr<TokenOutput> SampleToken(const SampleInput& input, SamplerScratch& scratch);

}  // namespace baton::engine
