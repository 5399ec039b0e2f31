#include "common/engine/sampling/any_token.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include "common/engine/request.h"
#include "common/engine/sampling/philox.h"
#include "common/engine/sampling/sampler.h"
#include "common/engine/sampling_params.h"

namespace baton::engine {

TokenOutput DrawAnyToken(const SampleInput& input, int32_t vocab_size) {
  const auto& stops = input.params->stop_token_ids;
  auto token = static_cast<int32_t>(UniformDraw(input.key) * vocab_size);
  // Fewer than all tokens stop, or the request has no other to get.
  for (size_t i = 0; i < stops.size() && std::ranges::find(stops, token) != stops.end(); ++i) {
    token = (token + 1) % vocab_size;
  }
  TokenOutput output = {.token_id = token, .logprob = 0.0f, .top_logprobs = {}};
  if (input.params->logprobs.has_value()) {
    output.logprob = -std::log(static_cast<float>(vocab_size));
    if (*input.params->logprobs > 0) {
      output.top_logprobs.emplace_back(token, output.logprob);
    }
  }
  return output;
}

}  // namespace baton::engine
