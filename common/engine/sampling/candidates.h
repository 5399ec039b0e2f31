// The tokens that a draw chooses from: temperature, top-k, top-p and min-p.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/engine/sampling/top_logits.h"
#include "common/engine/sampling_params.h"

namespace baton::engine {

// A token that may be drawn; its probability is weight over the sum of all weights.
struct Candidate {
  int32_t token_id = 0;
  float logit = 0.0f;
  double weight = 0.0;  // exp((logit - highest logit) / temperature)
};

// Fills `candidates` from adjusted logits: every token with a logit above -infinity, then, in this
// order (vLLM's, each step on what the one before left): the top_k most likely, the fewest most
// likely whose probability reaches top_p, those at least min_p times as likely as the most likely.
// Ties go to the lower id. With top_k or top_p the result is ordered most likely first, else by id.
// Empty when no token is left. temperature > 0; no logit is NaN or +infinity.
void SelectCandidates(const SamplingParams& params,
                      std::span<const float> logits,
                      std::vector<Candidate>& candidates);
// The same, in the same order, from the top_k most likely tokens of the row, or more. top_k > 0.
void SelectCandidates(const SamplingParams& params,
                      const TopLogits& top,
                      std::vector<Candidate>& candidates);

// The candidate at `uniform` in [0, 1) of the cumulative distribution. Not empty.
int32_t DrawCandidate(std::span<const Candidate> candidates, double uniform);

}  // namespace baton::engine
