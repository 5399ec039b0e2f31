#include "services/lab/baselines/streaming.h"

#include <algorithm>
#include <span>

#include "services/lab/baselines/baseline.h"

namespace baton::lab {

StreamingBaseline::StreamingBaseline(const BaselineSetup& setup, int64_t budget)
    : Baseline(setup, std::min(budget, setup.max_tokens)),
      budget_(std::min(budget, setup.max_tokens)),
      sinks_(std::min(kSinks, budget_ - 1)),
      oldest_(heads(), static_cast<int32_t>(sinks_)) {}

void StreamingBaseline::EncodeHead(HeadId at, std::span<float> keys, std::span<float> values) {
  const int64_t tokens = setup().prompt_tokens;
  const int64_t first_recent = std::max(sinks_, tokens - (budget_ - sinks_));
  for (int64_t token = 0; token < tokens; ++token) {
    if (token < sinks_ || token >= first_recent) {
      const auto element = static_cast<size_t>(token * head_dim());
      Add(at, &keys[element], &values[element]);
    }
  }
}

void StreamingBaseline::AppendHead(HeadId at,
                                   const float* key,
                                   const float* value,
                                   int32_t /*position*/) {
  if (size(at) < budget_) {
    Add(at, key, value);
    return;
  }
  int32_t& oldest = oldest_[Index(at)];
  store(at.kv_layer).Put(at.kv_head, oldest, key, value);
  oldest = oldest + 1 < budget_ ? oldest + 1 : static_cast<int32_t>(sinks_);
}

}  // namespace baton::lab
