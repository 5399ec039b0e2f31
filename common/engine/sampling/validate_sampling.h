// Refuses sampling parameters that mean nothing.
#pragma once

#include <cstdint>

#include "absl/status/status.h"

#include "common/engine/sampling_params.h"

namespace baton::engine {

// Most top logprobs of a token; bounds the size of a response.
inline constexpr int32_t kMaxTopLogprobs = 128;

// kInvalidArgument naming the field, the value and the limit. Pure; safe from any thread.
absl::Status ValidateSampling(const SamplingParams& params, int32_t vocab_size);

}  // namespace baton::engine
