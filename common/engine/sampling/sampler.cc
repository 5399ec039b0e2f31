#include "common/engine/sampling/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/status/status.h"

#include "common/engine/sampling/logprobs.h"

namespace baton::engine {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();
constexpr int32_t kNoToken = -1;

bool MasksStopTokens(const SampleInput& input) {
  return input.generated_tokens < input.params->min_tokens;
}

bool AdjustsLogits(const SampleInput& input) {
  return !input.params->logit_bias.empty() || HasPenalties(*input.params) || MasksStopTokens(input);
}

// Raw logits with NaN as "never" and +infinity as the largest number, so that later arithmetic
// stays defined.
void CopyUsable(std::span<const float> raw, std::vector<float>& logits) {
  logits.resize(raw.size());
  for (size_t i = 0; i < raw.size(); ++i) {
    logits[i] = std::isnan(raw[i]) ? kNever : std::min(raw[i], std::numeric_limits<float>::max());
  }
}

void Adjust(const SampleInput& input, std::span<float> logits) {
  for (const auto& [token, bias] : input.params->logit_bias) {
    logits[static_cast<size_t>(token)] += bias;
  }
  if (HasPenalties(*input.params)) {
    input.penalties->Apply(*input.params, logits);
  }
  if (MasksStopTokens(input)) {
    for (const int32_t token : input.params->stop_token_ids) {
      logits[static_cast<size_t>(token)] = kNever;
    }
  }
  for (float& logit : logits) {
    logit = std::min(logit, std::numeric_limits<float>::max());
  }
}

// kNoToken when every logit is NaN or -infinity.
int32_t Highest(std::span<const float> logits) {
  int32_t best = kNoToken;
  float highest = kNever;
  for (size_t i = 0; i < logits.size(); ++i) {
    if (logits[i] > highest) {
      highest = logits[i];
      best = static_cast<int32_t>(i);
    }
  }
  return best;
}

int32_t ChooseToken(const SampleInput& input, SamplerScratch& scratch) {
  const bool greedy = input.params->temperature == 0.0f;
  if (greedy && !AdjustsLogits(input)) {
    return Highest(input.logits);
  }
  CopyUsable(input.logits, scratch.logits);
  if (AdjustsLogits(input)) {
    Adjust(input, scratch.logits);
  }
  if (greedy) {
    return Highest(scratch.logits);
  }
  SelectCandidates(*input.params, scratch.logits, scratch.candidates);
  return scratch.candidates.empty() ? kNoToken
                                    : DrawCandidate(scratch.candidates, UniformDraw(input.key));
}

}  // namespace

absl::StatusOr<TokenOutput> SampleToken(const SampleInput& input, SamplerScratch& scratch) {
  TokenOutput output;
  output.token_id = ChooseToken(input, scratch);
  if (output.token_id == kNoToken) {
    return absl::InternalError("no token can be drawn: every logit is masked or not a number");
  }
  if (input.params->logprobs.has_value()) {
    FillLogprobs(input.logits, *input.params->logprobs, output);
  }
  return output;
}

}  // namespace baton::engine
