#include "common/text/chat.h"

#include <utility>

#include "absl/status/status.h"

#include "common/base/status_context.h"
#include "common/base/status_macros.h"
#include "common/text/concat.h"

namespace baton::text {
namespace {

const jinja::Template* FindTemplate(const ModelTokenizer& model, std::string_view name) {
  for (const NamedTemplate& entry : model.chat_templates) {
    if (entry.name == name) return &entry.compiled;
  }
  return nullptr;
}

std::string TemplateNames(const ModelTokenizer& model) {
  std::string names;
  for (const NamedTemplate& entry : model.chat_templates)
    names += Concat(names.empty() ? "" : ", ", entry.name);
  return names;
}

absl::Status CheckShape(const ChatRequest& request) {
  if (!request.messages.is_array() || request.messages.empty()) {
    return absl::InvalidArgumentError("messages must be an array with at least one message");
  }
  for (const auto& message : request.messages) {
    if (!message.is_object()) return absl::InvalidArgumentError("every message must be an object");
  }
  if (!request.tools.is_null() && !request.tools.is_array()) {
    return absl::InvalidArgumentError("tools must be an array");
  }
  if (!request.variables.is_null() && !request.variables.is_object()) {
    return absl::InvalidArgumentError("template variables must be an object");
  }
  return absl::OkStatus();
}

absl::Status SetFromJson(std::string_view name,
                         const nlohmann::ordered_json& json,
                         jinja::Dict* context) {
  absl::StatusOr<jinja::Value> value = jinja::ValueFromJson(json);
  if (!value.ok()) return WithContext(value.status(), name);
  context->Set(jinja::Value(name), *std::move(value));
  return absl::OkStatus();
}

// Names as HuggingFace transformers passes them; tools and documents are none rather than undefined
// without a value.
absl::StatusOr<jinja::Dict> MakeContext(const ModelTokenizer& model, const ChatRequest& request) {
  jinja::Dict context;
  for (const auto& [role, content] : model.special_tokens)
    context.Set(jinja::Value(role), jinja::Value(content));
  const nlohmann::ordered_json none;
  BATON_RETURN_IF_ERROR(SetFromJson("documents", none, &context));
  if (request.variables.is_object()) {
    for (const auto& [name, value] : request.variables.items()) {
      BATON_RETURN_IF_ERROR(SetFromJson(name, value, &context));
    }
  }
  BATON_RETURN_IF_ERROR(SetFromJson("messages", request.messages, &context));
  BATON_RETURN_IF_ERROR(
      SetFromJson("tools", request.tools.empty() ? none : request.tools, &context));
  context.Set(jinja::Value("add_generation_prompt"), jinja::Value(request.add_generation_prompt));
  return context;
}

}  // namespace

absl::StatusOr<const jinja::Template*> SelectTemplate(const ModelTokenizer& model,
                                                      const ChatRequest& request) {
  if (model.chat_templates.empty()) {
    return absl::FailedPreconditionError(
        "the model has no chat template; send a plain prompt instead");
  }
  std::string name = request.template_name;
  if (name.empty()) {
    const bool wants_tools = !request.tools.empty() && FindTemplate(model, "tool_use") != nullptr;
    name = wants_tools ? "tool_use" : "default";
  }
  const jinja::Template* found = FindTemplate(model, name);
  if (found != nullptr) return found;
  return absl::NotFoundError(Concat(
      "the model has no chat template named \"", name, "\"; it has: ", TemplateNames(model)));
}

absl::StatusOr<std::string> RenderChat(const ModelTokenizer& model,
                                       const ChatRequest& request,
                                       absl::Time now) {
  BATON_RETURN_IF_ERROR(CheckShape(request));
  BATON_ASSIGN_OR_RETURN(const jinja::Template* const chat_template,
                         SelectTemplate(model, request));
  BATON_ASSIGN_OR_RETURN(const jinja::Dict context, MakeContext(model, request));
  return chat_template->Render(context, now);
}

absl::StatusOr<std::vector<int32_t>> EncodeChat(const ModelTokenizer& model,
                                                const ChatRequest& request,
                                                absl::Time now) {
  BATON_ASSIGN_OR_RETURN(const std::string text, RenderChat(model, request, now));
  return model.tokenizer->Encode(text, /*add_special_tokens=*/false);
}

}  // namespace baton::text
