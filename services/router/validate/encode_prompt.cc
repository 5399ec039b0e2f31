#include "services/router/validate/encode_prompt.h"

#include <utility>

#include "absl/strings/str_cat.h"

#include "common/base/status_macros.h"
#include "common/rpc/status_details.h"
#include "common/text/bounded_json.h"
#include "common/text/chat.h"
#include "services/router/validate/check_request.h"

namespace baton::router {
namespace {

// `status` as an error of `field`; other codes than kInvalidArgument stay as they are.
absl::Status AsFieldError(const char* field, const absl::Status& status) {
  return absl::IsInvalidArgument(status)
             ? rpc::InvalidField(field,
                                 std::string_view(status.message().data(), status.message().size()))
             : status;
}

// Parses a JSON field; an empty one gives null.
absl::StatusOr<nlohmann::ordered_json> ParseField(const char* field,
                                                  const std::string& json,
                                                  bool want_array) {
  if (json.empty()) {
    return nlohmann::ordered_json();
  }
  auto parsed = text::ParseBoundedOrderedJson(json, text::kRequestJsonLimits);
  if (!parsed.ok()) {
    return AsFieldError(field, parsed.status());
  }
  if (want_array ? !parsed->is_array() : !parsed->is_object()) {
    return rpc::InvalidField(field, want_array ? "must be a JSON array" : "must be a JSON object");
  }
  return parsed;
}

}  // namespace

absl::StatusOr<EncodedChat> EncodeChatPrompt(const ServedModel& model,
                                             const inference::v1::Chat& chat,
                                             absl::Time now) {
  if (chat.messages().empty() || chat.messages_size() > kMaxMessages) {
    return rpc::InvalidField("chat.messages",
                             absl::StrCat("must have 1 to ", kMaxMessages, " messages"));
  }
  text::ChatRequest request;
  for (const inference::v1::Message& message : chat.messages()) {
    request.messages.push_back({{"role", message.role()}, {"content", message.content()}});
  }
  request.add_generation_prompt = !chat.has_add_generation_prompt() || chat.add_generation_prompt();
  BATON_ASSIGN_OR_RETURN(request.tools, ParseField("chat.tools_json", chat.tools_json(), true));
  BATON_ASSIGN_OR_RETURN(
      request.variables,
      ParseField("chat.template_kwargs_json", chat.template_kwargs_json(), false));
  auto rendered = text::RenderChat(model.tokenizer, request, now);
  if (!rendered.ok()) {
    return AsFieldError("chat", rendered.status());
  }
  EncodedChat encoded;
  encoded.rendered = *std::move(rendered);
  auto ids = model.tokenizer.tokenizer->Encode(encoded.rendered, /*add_special_tokens=*/false);
  if (!ids.ok()) {
    return AsFieldError("chat", ids.status());
  }
  encoded.token_ids = *std::move(ids);
  return encoded;
}

absl::StatusOr<std::vector<int32_t>> EncodeTextPrompt(const ServedModel& model,
                                                      const std::string& text,
                                                      bool add_special_tokens) {
  auto ids = model.tokenizer.tokenizer->Encode(text, add_special_tokens);
  if (!ids.ok()) {
    return AsFieldError("text", ids.status());
  }
  return ids;
}

absl::StatusOr<std::vector<int32_t>> EncodePrompt(const ServedModel& model,
                                                  const inference::v1::GenerateRequest& request,
                                                  absl::Time now) {
  if (request.has_text()) {
    return EncodeTextPrompt(model, request.text(), /*add_special_tokens=*/true);
  }
  if (request.has_chat()) {
    BATON_ASSIGN_OR_RETURN(EncodedChat chat, EncodeChatPrompt(model, request.chat(), now));
    return std::move(chat.token_ids);
  }
  return std::vector<int32_t>(request.token_ids().ids().begin(), request.token_ids().ids().end());
}

}  // namespace baton::router
