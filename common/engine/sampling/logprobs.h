// Log-probabilities of a row of raw logits.
#pragma once

#include <cstdint>
#include <span>

#include "common/engine/request.h"
#include "common/engine/sampling/top_logits.h"

namespace baton::engine {

// Fills output.logprob for output.token_id, and output.top_logprobs with the `top_count` most
// likely tokens (ties to the lower id), from logits before bias, penalties, masks and temperature.
// A NaN counts as -infinity.
void FillLogprobs(std::span<const float> raw_logits, int32_t top_count, TokenOutput& output);
// The same from the top_count most likely tokens or more, among which output.token_id is.
void FillLogprobs(const TopLogits& top, int32_t top_count, TokenOutput& output);

}  // namespace baton::engine
