#include "common/engine/request_checks.h"

#include "absl/strings/str_cat.h"

#include "common/base/status_macros.h"
#include "common/engine/page_plan.h"
#include "common/engine/sampling/validate_sampling.h"
#include "common/kv/codec/kv_policy.h"

namespace baton::engine {
namespace {

absl::Status CheckCommon(const EngineLimits& limits,
                         const std::string& request_id,
                         int64_t prompt_tokens,
                         const std::string& kv_policy,
                         const SamplingParams& sampling) {
  if (request_id.empty()) {
    return absl::InvalidArgumentError("request_id is empty; it must name the request");
  }
  if (prompt_tokens < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("prompt has ", prompt_tokens, " tokens; it must have at least 1"));
  }
  BATON_RETURN_IF_ERROR(ValidateSampling(sampling, limits.vocab_size));
  return kv::ParseKvPolicy(kv_policy).status();
}

absl::Status CheckPromptTokens(const EngineLimits& limits, const std::vector<int32_t>& prompt) {
  for (size_t i = 0; i < prompt.size(); ++i) {
    if (prompt[i] < 0 || prompt[i] >= limits.vocab_size) {
      return absl::InvalidArgumentError(absl::StrCat("prompt token ",
                                                     i,
                                                     " is ",
                                                     prompt[i],
                                                     "; the vocabulary has ",
                                                     limits.vocab_size,
                                                     " tokens"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckGenerateRequest(const EngineLimits& limits, const GenerateRequest& request) {
  if (limits.role == Role::kDecode) {
    return absl::FailedPreconditionError("WRONG_ROLE: a decode engine takes reservations only");
  }
  const bool ships = request.sink != nullptr || request.open_sink != nullptr;
  if ((limits.role == Role::kPrefill) != ships) {
    return absl::InvalidArgumentError(
        "a KV sink goes with the prefill role, and only with that role");
  }
  const auto prompt_tokens = static_cast<int64_t>(request.prompt.size());
  BATON_RETURN_IF_ERROR(
      CheckCommon(limits, request.request_id, prompt_tokens, request.kv_policy, request.sampling));
  BATON_RETURN_IF_ERROR(CheckPromptTokens(limits, request.prompt));
  if (prompt_tokens > limits.max_waiting_tokens) {
    return absl::InvalidArgumentError(absl::StrCat("EXCEEDS_CAPACITY: prompt has ",
                                                   prompt_tokens,
                                                   " tokens; the waiting queue holds ",
                                                   limits.max_waiting_tokens));
  }
  return CheckCapacity(limits, prompt_tokens, request.sampling);
}

absl::Status CheckReserveRequest(const EngineLimits& limits, const ReserveRequest& request) {
  if (limits.role != Role::kDecode) {
    return absl::FailedPreconditionError("WRONG_ROLE: only a decode engine grants reservations");
  }
  return CheckCommon(
      limits, request.request_id, request.prompt_tokens, request.kv_policy, request.sampling);
}

absl::Status CheckCapacity(const EngineLimits& limits,
                           int64_t prompt_tokens,
                           const SamplingParams& sampling) {
  if (prompt_tokens > limits.max_sequence_tokens - sampling.max_tokens) {
    return absl::InvalidArgumentError(absl::StrCat("PROMPT_TOO_LONG: prompt of ",
                                                   prompt_tokens,
                                                   " tokens plus max_tokens ",
                                                   sampling.max_tokens,
                                                   " exceeds the limit of ",
                                                   limits.max_sequence_tokens,
                                                   " tokens of a sequence"));
  }
  const bool generates = limits.role != Role::kPrefill;
  if (generates && sampling.n > limits.max_running_sequences) {
    return absl::InvalidArgumentError(absl::StrCat("EXCEEDS_CAPACITY: n is ",
                                                   sampling.n,
                                                   "; at most ",
                                                   limits.max_running_sequences,
                                                   " sequences run at a time"));
  }
  const int64_t pages =
      PlanPages(*limits.format, prompt_tokens, sampling.n, sampling.max_tokens, generates).pages();
  if (pages > limits.pages_total) {
    return absl::InvalidArgumentError(absl::StrCat("EXCEEDS_CAPACITY: the request needs ",
                                                   pages,
                                                   " KV pages; the pool has ",
                                                   limits.pages_total));
  }
  return absl::OkStatus();
}

}  // namespace baton::engine
