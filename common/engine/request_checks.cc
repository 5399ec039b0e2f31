#include "common/engine/request_checks.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

#include "common/base/status_macros.h"
#include "common/engine/engine.h"
#include "common/engine/kv_choice.h"
#include "common/engine/request.h"
#include "common/engine/sampling/validate_sampling.h"
#include "common/engine/sampling_params.h"
#include "common/engine/sequence_memory.h"

namespace baton::engine {
namespace {

absl::Status CheckHasPrompt(int64_t prompt_tokens) {
  if (prompt_tokens < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("prompt has ", prompt_tokens, " tokens; it must have at least 1"));
  }
  return absl::OkStatus();
}

// The limit applies to the prompt and what is generated.
absl::Status CheckSequenceTokens(const EngineLimits& limits,
                                 int64_t prompt_tokens,
                                 int64_t max_tokens) {
  if (prompt_tokens > limits.max_sequence_tokens - max_tokens) {
    return absl::InvalidArgumentError(absl::StrCat("PROMPT_TOO_LONG: prompt of ",
                                                   prompt_tokens,
                                                   " tokens plus max_tokens ",
                                                   max_tokens,
                                                   " exceeds the limit of ",
                                                   limits.max_sequence_tokens,
                                                   " tokens of a sequence"));
  }
  return absl::OkStatus();
}

absl::Status CheckCommon(const EngineLimits& limits,
                         const std::string& request_id,
                         int64_t prompt_tokens,
                         const SamplingParams& sampling) {
  if (request_id.empty()) {
    return absl::InvalidArgumentError("request_id is empty; it must name the request");
  }
  BATON_RETURN_IF_ERROR(CheckHasPrompt(prompt_tokens));
  return ValidateSampling(sampling, limits.vocab_size);
}

// A turn of a conversation.
absl::Status CheckSession(const std::string& session_id, const SamplingParams& sampling) {
  if (!session_id.empty() && sampling.n != 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "session_id goes with n = 1: a conversation has one answer to go on from; n is ",
        sampling.n));
  }
  return absl::OkStatus();
}

// `what`: prompt or delivered.
absl::Status CheckTokens(const EngineLimits& limits,
                         const char* what,
                         const std::vector<int32_t>& tokens) {
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] < 0 || tokens[i] >= limits.vocab_size) {
      return absl::InvalidArgumentError(absl::StrCat(what,
                                                     " token ",
                                                     i,
                                                     " is ",
                                                     tokens[i],
                                                     "; the vocabulary has ",
                                                     limits.vocab_size,
                                                     " tokens"));
    }
  }
  return absl::OkStatus();
}

// What a continued request's client has already.
absl::Status CheckDelivered(const EngineLimits& limits,
                            const std::vector<std::vector<int32_t>>& delivered,
                            const SamplingParams& sampling) {
  if (delivered.empty()) {
    return absl::OkStatus();
  }
  if (delivered.size() != static_cast<size_t>(sampling.n)) {
    return absl::InvalidArgumentError(absl::StrCat("delivered tokens are given for ",
                                                   delivered.size(),
                                                   " sequences; the request has n = ",
                                                   sampling.n));
  }
  for (const std::vector<int32_t>& tokens : delivered) {
    if (tokens.size() > static_cast<size_t>(sampling.max_tokens)) {
      return absl::InvalidArgumentError(absl::StrCat(tokens.size(),
                                                     " tokens are said to be delivered; max_tokens "
                                                     "is ",
                                                     sampling.max_tokens));
    }
    BATON_RETURN_IF_ERROR(CheckTokens(limits, "delivered", tokens));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckPromptLength(const EngineLimits& limits, int64_t prompt_tokens) {
  BATON_RETURN_IF_ERROR(CheckHasPrompt(prompt_tokens));
  return CheckSequenceTokens(limits, prompt_tokens, /*max_tokens=*/0);
}

absl::Status CheckGenerateRequest(const EngineLimits& limits,
                                  const KvChoice& kv,
                                  const GenerateRequest& request) {
  if (limits.role == Role::kDecode) {
    return absl::FailedPreconditionError("WRONG_ROLE: a decode engine takes reservations only");
  }
  const bool ships = request.sink != nullptr || request.open_sink != nullptr;
  if ((limits.role == Role::kPrefill) != ships) {
    return absl::InvalidArgumentError(
        "a KV sink goes with the prefill role, and only with that role");
  }
  if (limits.role == Role::kPrefill && !request.session_id.empty()) {
    return absl::InvalidArgumentError("session_id: KV is kept where it is decoded, not by prefill");
  }
  if (limits.role == Role::kPrefill && !request.delivered.empty()) {
    return absl::InvalidArgumentError("delivered tokens are replayed by decode, not by prefill");
  }
  BATON_RETURN_IF_ERROR(CheckSession(request.session_id, request.sampling));
  BATON_RETURN_IF_ERROR(CheckDelivered(limits, request.delivered, request.sampling));
  const auto prompt_tokens = static_cast<int64_t>(request.prompt.size());
  BATON_RETURN_IF_ERROR(CheckCommon(limits, request.request_id, prompt_tokens, request.sampling));
  BATON_RETURN_IF_ERROR(CheckTokens(limits, "prompt", request.prompt));
  if (prompt_tokens > limits.max_waiting_tokens) {
    return absl::InvalidArgumentError(absl::StrCat("EXCEEDS_CAPACITY: prompt has ",
                                                   prompt_tokens,
                                                   " tokens; the waiting queue holds ",
                                                   limits.max_waiting_tokens));
  }
  return CheckCapacity(limits, kv, prompt_tokens, request.sampling);
}

absl::Status CheckReserveRequest(const EngineLimits& limits, const ReserveRequest& request) {
  if (limits.role != Role::kDecode) {
    return absl::FailedPreconditionError("WRONG_ROLE: only a decode engine grants reservations");
  }
  BATON_RETURN_IF_ERROR(CheckSession(request.session_id, request.sampling));
  BATON_RETURN_IF_ERROR(CheckDelivered(limits, request.delivered, request.sampling));
  BATON_RETURN_IF_ERROR(
      CheckCommon(limits, request.request_id, request.prompt_tokens, request.sampling));
  if (request.session_id.empty()) {
    return absl::OkStatus();
  }
  if (static_cast<int64_t>(request.prompt.size()) != request.prompt_tokens) {
    return absl::InvalidArgumentError(absl::StrCat("a reservation with a session_id carries ",
                                                   request.prompt.size(),
                                                   " prompt tokens; it says prompt_tokens = ",
                                                   request.prompt_tokens));
  }
  return CheckTokens(limits, "prompt", request.prompt);
}

absl::Status CheckStaging(const EngineLimits& limits, const KvChoice& kv, int64_t prompt_tokens) {
  if (!limits.staging_bytes.has_value()) {
    return absl::OkStatus();
  }
  const int64_t bytes = PromptShape(*limits.format, kv, prompt_tokens).bytes();
  if (bytes <= *limits.staging_bytes) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("EXCEEDS_CAPACITY: the prompt takes ",
                   bytes,
                   " bytes of memory while it is handed off; there are ",
                   *limits.staging_bytes));
}

absl::Status CheckCapacity(const EngineLimits& limits,
                           const KvChoice& kv,
                           int64_t prompt_tokens,
                           const SamplingParams& sampling) {
  BATON_RETURN_IF_ERROR(CheckSequenceTokens(limits, prompt_tokens, sampling.max_tokens));
  const bool generates = limits.role != Role::kPrefill;
  if (generates && sampling.n > limits.max_running_sequences) {
    return absl::InvalidArgumentError(absl::StrCat("EXCEEDS_CAPACITY: n is ",
                                                   sampling.n,
                                                   "; at most ",
                                                   limits.max_running_sequences,
                                                   " sequences run at a time"));
  }
  if (limits.role == Role::kDecode) {
    BATON_RETURN_IF_ERROR(CheckStaging(limits, kv, prompt_tokens));
  }
  return CheckMemory(*limits.format,
                     {.prefills = limits.role != Role::kDecode, .generates = generates},
                     limits.pages_total,
                     kv,
                     prompt_tokens,
                     sampling);
}

}  // namespace baton::engine
