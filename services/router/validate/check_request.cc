#include "services/router/validate/check_request.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "absl/strings/str_cat.h"

#include "common/base/status_macros.h"
#include "common/kv/codec/kv_policy.h"
#include "common/rpc/status_details.h"
#include "common/text/stop_matcher.h"
#include "common/text/utf8.h"
#include "services/router/model/served_model.h"
#include "services/router/validate/field_violations.h"

namespace baton::router {
namespace {

using inference::v1::GenerateRequest;

void CheckId(const char* field, const std::string& id, FieldViolations* violations) {
  const bool plain = std::ranges::all_of(id, [](char c) { return c > ' ' && c <= '~'; });
  if (id.size() > kMaxRequestIdBytes || !plain) {
    violations->Add(
        field,
        absl::StrCat(
            "must be at most ", kMaxRequestIdBytes, " printable ASCII characters without spaces"));
  }
}

void CheckSession(const GenerateRequest& request, FieldViolations* violations) {
  CheckId("session_id", request.session_id(), violations);
  if (!request.session_id().empty() && request.sampling().has_n() && request.sampling().n() > 1) {
    violations->Add("session_id", "goes with n = 1: a conversation goes on from one answer");
  }
}

void CheckTokenIds(const GenerateRequest& request,
                   uint32_t vocab_size,
                   FieldViolations* violations) {
  if (request.token_ids().ids().empty()) {
    violations->Add("token_ids.ids", "must not be empty");
  }
  for (int i = 0; i < request.token_ids().ids_size(); ++i) {
    if (request.token_ids().ids(i) >= vocab_size) {
      violations->Add(absl::StrCat("token_ids.ids[", i, "]"),
                      absl::StrCat("token id ",
                                   request.token_ids().ids(i),
                                   " is not below the vocabulary size ",
                                   vocab_size));
      return;
    }
  }
}

void CheckChat(const inference::v1::Chat& chat, FieldViolations* violations) {
  if (chat.messages().empty() || chat.messages_size() > kMaxMessages) {
    violations->Add("chat.messages", absl::StrCat("must have 1 to ", kMaxMessages, " messages"));
    return;
  }
  for (int i = 0; i < chat.messages_size(); ++i) {
    const inference::v1::Message& message = chat.messages(i);
    if (message.role().empty()) {
      violations->Add(absl::StrCat("chat.messages[", i, "].role"), "must not be empty");
    }
    if (text::FindInvalidUtf8(message.role()) != std::string_view::npos ||
        text::FindInvalidUtf8(message.content()) != std::string_view::npos) {
      violations->Add(absl::StrCat("chat.messages[", i, "]"), "is not valid UTF-8");
    }
  }
}

void CheckPrompt(const GenerateRequest& request, uint32_t vocab_size, FieldViolations* violations) {
  switch (request.prompt_case()) {
    case GenerateRequest::kText:
      if (request.text().empty()) {
        violations->Add("text", "must not be empty");
      }
      if (const size_t at = text::FindInvalidUtf8(request.text()); at != std::string_view::npos) {
        violations->Add("text", absl::StrCat("is not valid UTF-8 at byte ", at));
      }
      return;
    case GenerateRequest::kTokenIds:
      CheckTokenIds(request, vocab_size, violations);
      return;
    case GenerateRequest::kChat:
      CheckChat(request.chat(), violations);
      return;
    case GenerateRequest::PROMPT_NOT_SET:
      violations->Add("prompt", "one of text, token_ids and chat must be set");
      return;
  }
}

// Comparisons are written so that NaN fails them.
void CheckRange(
    const char* field, float value, bool in_range, const char* range, FieldViolations* violations) {
  if (!in_range || !std::isfinite(value)) {
    violations->Add(field, absl::StrCat("must be ", range, ", is ", value));
  }
}

void CheckLogitBias(const inference::v1::Sampling& sampling,
                    uint32_t vocab_size,
                    FieldViolations* violations) {
  if (sampling.logit_bias_size() > kMaxLogitBias) {
    violations->Add("sampling.logit_bias",
                    absl::StrCat("must have at most ", kMaxLogitBias, " entries"));
    return;
  }
  for (const auto& [id, bias] : sampling.logit_bias()) {
    const std::string field = absl::StrCat("sampling.logit_bias[", id, "]");
    if (id >= vocab_size) {
      violations->Add(field, absl::StrCat("unknown token id; the vocabulary size is ", vocab_size));
    }
    if (!std::isfinite(bias)) {
      violations->Add(field, "must be finite");
    }
  }
}

void CheckSampling(const inference::v1::Sampling& sampling,
                   uint32_t vocab_size,
                   FieldViolations* violations) {
  const auto check = [&](const char* field, bool set, float value, bool ok, const char* range) {
    if (set) {
      CheckRange(field, value, ok, range, violations);
    }
  };
  const float temperature = sampling.temperature();
  const float top_p = sampling.top_p();
  const float min_p = sampling.min_p();
  const float presence = sampling.presence_penalty();
  const float frequency = sampling.frequency_penalty();
  const float repetition = sampling.repetition_penalty();
  check("sampling.temperature",
        sampling.has_temperature(),
        temperature,
        temperature >= 0.0f,
        "finite and at least 0");
  check("sampling.top_p",
        sampling.has_top_p(),
        top_p,
        top_p > 0.0f && top_p <= 1.0f,
        "above 0 and at most 1");
  check("sampling.min_p",
        sampling.has_min_p(),
        min_p,
        min_p >= 0.0f && min_p < 1.0f,
        "at least 0 and below 1");
  check("sampling.presence_penalty",
        sampling.has_presence_penalty(),
        presence,
        std::fabs(presence) <= kMaxPenalty,
        "from -2 to 2");
  check("sampling.frequency_penalty",
        sampling.has_frequency_penalty(),
        frequency,
        std::fabs(frequency) <= kMaxPenalty,
        "from -2 to 2");
  check("sampling.repetition_penalty",
        sampling.has_repetition_penalty(),
        repetition,
        repetition > 0.0f,
        "finite and above 0");
  if (sampling.has_n() && (sampling.n() < 1 || sampling.n() > kMaxSequences)) {
    violations->Add("sampling.n",
                    absl::StrCat("must be from 1 to ", kMaxSequences, ", is ", sampling.n()));
  }
  CheckLogitBias(sampling, vocab_size, violations);
}

void CheckStopping(const inference::v1::Stopping& stopping,
                   uint32_t vocab_size,
                   FieldViolations* violations) {
  if (stopping.has_max_tokens() && stopping.max_tokens() == 0) {
    violations->Add("stopping.max_tokens", "must be at least 1");
  }
  if (stopping.has_max_tokens() && stopping.min_tokens() > stopping.max_tokens()) {
    violations->Add("stopping.min_tokens",
                    absl::StrCat("must be at most max_tokens (", stopping.max_tokens(), ")"));
  }
  if (static_cast<size_t>(stopping.stop_size()) > text::kMaxStopStrings) {
    violations->Add("stopping.stop",
                    absl::StrCat("must have at most ", text::kMaxStopStrings, " entries"));
    return;
  }
  for (int i = 0; i < stopping.stop_size(); ++i) {
    const std::string& stop = stopping.stop(i);
    if (stop.empty() || stop.size() > text::kMaxStopBytes ||
        text::FindInvalidUtf8(stop) != std::string_view::npos) {
      violations->Add(absl::StrCat("stopping.stop[", i, "]"),
                      absl::StrCat("must be 1 to ", text::kMaxStopBytes, " bytes of UTF-8"));
    }
  }
  if (stopping.stop_token_ids_size() > kMaxStopTokenIds) {
    violations->Add("stopping.stop_token_ids",
                    absl::StrCat("must have at most ", kMaxStopTokenIds, " entries"));
    return;
  }
  for (int i = 0; i < stopping.stop_token_ids_size(); ++i) {
    if (stopping.stop_token_ids(i) >= vocab_size) {
      violations->Add(absl::StrCat("stopping.stop_token_ids[", i, "]"),
                      absl::StrCat("unknown token id ",
                                   stopping.stop_token_ids(i),
                                   "; the vocabulary size is ",
                                   vocab_size));
    }
  }
}

}  // namespace

absl::Status CheckModelName(const ServedModel& model, const std::string& name) {
  if (name.empty() || name == model.name) {
    return absl::OkStatus();
  }
  return rpc::WithReason(
      absl::NotFoundError(absl::StrCat(
          "model `", name, "` is not served here; this server has `", model.name, "`")),
      rpc::reason::kUnknownModel,
      {{"model", name}});
}

absl::StatusOr<std::string> CheckedKvPolicy(const std::string& kv_policy) {
  if (kv_policy.empty()) {
    return std::string(kDefaultKvPolicy);
  }
  BATON_ASSIGN_OR_RETURN(const kv::KvPolicy policy,
                         kv::ParseKvPolicy(kv_policy, kv::KvPolicyDefaults::Widest()));
  if (policy.is_baseline()) {
    return absl::InvalidArgumentError(
        absl::StrCat("kv_policy: ",
                     policy.CanonicalString(),
                     " is a baseline for comparisons in baton-lab; no worker serves it"));
  }
  return kv_policy;
}

absl::Status CheckRequest(const ServedModel& model, const GenerateRequest& request) {
  BATON_RETURN_IF_ERROR(CheckModelName(model, request.model()));
  BATON_RETURN_IF_ERROR(CheckedKvPolicy(request.kv_policy()).status());
  const auto vocab_size = static_cast<uint32_t>(model.config.vocab_size);
  FieldViolations violations;
  CheckId("request_id", request.request_id(), &violations);
  CheckSession(request, &violations);
  CheckPrompt(request, vocab_size, &violations);
  CheckSampling(request.sampling(), vocab_size, &violations);
  CheckStopping(request.stopping(), vocab_size, &violations);
  if (request.output().has_logprobs() && request.output().logprobs() > kMaxTopLogprobs) {
    violations.Add(
        "output.logprobs",
        absl::StrCat("must be at most ", kMaxTopLogprobs, ", is ", request.output().logprobs()));
  }
  return violations.ToStatus();
}

}  // namespace baton::router
