#include "common/engine/sampling/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"

#include "common/engine/request.h"
#include "common/engine/sampling/candidates.h"
#include "common/engine/sampling/logprobs.h"
#include "common/engine/sampling/penalty_state.h"
#include "common/engine/sampling/philox.h"
#include "common/engine/sampling_params.h"
#include "kernels/ops/params.h"

namespace baton::engine {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();
constexpr int32_t kNoToken = -1;

bool MasksStopTokens(const SamplingParams& params, int32_t generated_tokens) {
  return generated_tokens < params.min_tokens;
}

bool AdjustsLogits(const SamplingParams& params, int32_t generated_tokens) {
  return !params.logit_bias.empty() || HasPenalties(params) ||
         MasksStopTokens(params, generated_tokens);
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
  if (MasksStopTokens(*input.params, input.generated_tokens)) {
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

int32_t DrawFrom(const std::vector<Candidate>& candidates, const DrawKey& key) {
  return candidates.empty() ? kNoToken : DrawCandidate(candidates, UniformDraw(key));
}

int32_t ChooseToken(const SampleInput& input, SamplerScratch& scratch) {
  const bool greedy = input.params->temperature == 0.0f;
  const bool adjusts = AdjustsLogits(*input.params, input.generated_tokens);
  if (greedy && !adjusts) {
    return Highest(input.logits);
  }
  CopyUsable(input.logits, scratch.logits);
  if (adjusts) {
    Adjust(input, scratch.logits);
  }
  if (greedy) {
    return Highest(scratch.logits);
  }
  SelectCandidates(*input.params, scratch.logits, scratch.candidates);
  return DrawFrom(scratch.candidates, input.key);
}

int32_t ChooseFromTop(const SampleInput& input, SamplerScratch& scratch) {
  if (input.top.ids.empty()) {
    return kNoToken;
  }
  if (input.params->temperature == 0.0f) {
    return input.top.ids.front();
  }
  SelectCandidates(*input.params, input.top, scratch.candidates);
  return DrawFrom(scratch.candidates, input.key);
}

}  // namespace

std::optional<int32_t> TopLogitsNeeded(const SamplingParams& params, int32_t generated_tokens) {
  const int32_t draws_from = params.temperature == 0.0f ? 1 : params.top_k;
  if (AdjustsLogits(params, generated_tokens) || draws_from < 1 ||
      draws_from > kernels::kMaxTopLogits) {
    return std::nullopt;
  }
  return std::max(draws_from, params.logprobs.value_or(0));
}

absl::StatusOr<TokenOutput> SampleToken(const SampleInput& input, SamplerScratch& scratch) {
  TokenOutput output;
  const bool has_row = !input.logits.empty();
  output.token_id = has_row ? ChooseToken(input, scratch) : ChooseFromTop(input, scratch);
  if (output.token_id == kNoToken) {
    return absl::InternalError("no token can be drawn: every logit is masked or not a number");
  }
  if (input.params->logprobs.has_value() && has_row) {
    FillLogprobs(input.logits, *input.params->logprobs, output);
  } else if (input.params->logprobs.has_value()) {
    FillLogprobs(input.top, *input.params->logprobs, output);
  }
  return output;
}

}  // namespace baton::engine
