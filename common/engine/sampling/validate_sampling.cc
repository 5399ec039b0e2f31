#include "common/engine/sampling/validate_sampling.h"

#include <cmath>
#include <string_view>

#include "absl/strings/str_cat.h"

#include "common/base/status_macros.h"

namespace baton::engine {
namespace {

template <typename T>
absl::Status Refuse(const char* field, T value, std::string_view rule) {
  return absl::InvalidArgumentError(
      absl::StrCat(field, " is ", value, "; it must be ", std::string(rule)));
}

absl::Status CheckDistribution(const SamplingParams& params) {
  if (!std::isfinite(params.temperature) || params.temperature < 0.0f) {
    return Refuse("temperature", params.temperature, "a finite number >= 0");
  }
  if (!(params.top_p > 0.0f && params.top_p <= 1.0f)) {
    return Refuse("top_p", params.top_p, "in (0, 1]");
  }
  if (params.top_k < 0) {
    return Refuse("top_k", params.top_k, ">= 0 (0 means all)");
  }
  if (!(params.min_p >= 0.0f && params.min_p < 1.0f)) {
    return Refuse("min_p", params.min_p, "in [0, 1)");
  }
  return absl::OkStatus();
}

absl::Status CheckPenalties(const SamplingParams& params) {
  if (!std::isfinite(params.presence_penalty)) {
    return Refuse("presence_penalty", params.presence_penalty, "a finite number");
  }
  if (!std::isfinite(params.frequency_penalty)) {
    return Refuse("frequency_penalty", params.frequency_penalty, "a finite number");
  }
  if (!std::isfinite(params.repetition_penalty) || params.repetition_penalty <= 0.0f) {
    return Refuse("repetition_penalty", params.repetition_penalty, "a finite number > 0");
  }
  return absl::OkStatus();
}

absl::Status CheckCounts(const SamplingParams& params) {
  if (params.n < 1 || params.n > kMaxSequences) {
    return Refuse("n", params.n, absl::StrCat("in [1, ", kMaxSequences, "]"));
  }
  if (params.max_tokens < 1) {
    return Refuse("max_tokens", params.max_tokens, ">= 1");
  }
  if (params.min_tokens < 0 || params.min_tokens > params.max_tokens) {
    return Refuse("min_tokens", params.min_tokens, "in [0, max_tokens]");
  }
  if (params.logprobs.has_value() && (*params.logprobs < 0 || *params.logprobs > kMaxTopLogprobs)) {
    return Refuse("logprobs", *params.logprobs, "in [0, 128]");
  }
  return absl::OkStatus();
}

absl::Status CheckTokenId(const char* field, int32_t token, int32_t vocab_size) {
  if (token < 0 || token >= vocab_size) {
    return absl::InvalidArgumentError(absl::StrCat(
        field, " names token ", token, "; the vocabulary has ", vocab_size, " tokens"));
  }
  return absl::OkStatus();
}

absl::Status CheckTokenIds(const SamplingParams& params, int32_t vocab_size) {
  const auto vocab = static_cast<size_t>(vocab_size);
  if (params.logit_bias.size() > vocab || params.stop_token_ids.size() > vocab) {
    return absl::InvalidArgumentError(
        absl::StrCat("logit_bias and stop_token_ids may have at most one entry per token of the "
                     "vocabulary (",
                     vocab_size,
                     ")"));
  }
  for (const auto& [token, bias] : params.logit_bias) {
    BATON_RETURN_IF_ERROR(CheckTokenId("logit_bias", token, vocab_size));
    if (!std::isfinite(bias)) {
      return Refuse("logit_bias", bias, "a finite number");
    }
  }
  for (const int32_t token : params.stop_token_ids) {
    BATON_RETURN_IF_ERROR(CheckTokenId("stop_token_ids", token, vocab_size));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ValidateSampling(const SamplingParams& params, int32_t vocab_size) {
  BATON_RETURN_IF_ERROR(CheckDistribution(params));
  BATON_RETURN_IF_ERROR(CheckPenalties(params));
  BATON_RETURN_IF_ERROR(CheckCounts(params));
  return CheckTokenIds(params, vocab_size);
}

}  // namespace baton::engine
