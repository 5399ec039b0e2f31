// The tokens of a model without logits.
#pragma once

#include <cstdint>

#include "common/engine/request.h"
#include "common/engine/sampling/sampler.h"

namespace baton::engine {

// Every token of the vocabulary is equally likely, whatever the sampling parameters, but for stop
// tokens, so that answers have the length of max_tokens. Depends on `input.key` and the stop tokens
// alone. Thread-safe.
TokenOutput DrawAnyToken(const SampleInput& input, int32_t vocab_size);

}  // namespace baton::engine
