#include "services/lab/commands/tokenize.h"

#include <cstdint>
#include <iostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

#include "common/base/status_context.h"
#include "common/base/status_macros.h"
#include "common/checkpoint/read_file.h"
#include "common/config/check_flag.h"
#include "common/text/bounded_json.h"
#include "common/text/chat.h"
#include "common/text/detokenizer.h"
#include "services/lab/flags.h"

ABSL_FLAG(std::string,
          chat_template,
          "",
          "tokenize: Jinja file to use instead of the model's chat template.");

namespace baton::lab {
namespace {

using nlohmann::ordered_json;

constexpr text::JsonLimits kLineLimits = {
    .max_bytes = 64 << 20, .max_depth = 48, .max_members = 1 << 20};

absl::StatusOr<bool> Flag(const ordered_json& request, const char* name, bool fallback) {
  const auto it = request.find(name);
  if (it == request.end()) {
    return fallback;
  }
  if (!it->is_boolean()) {
    return absl::InvalidArgumentError(absl::StrCat("field `", name, "` must be true or false"));
  }
  return it->get<bool>();
}

absl::StatusOr<ordered_json> EncodeText(const text::ModelTokenizer& model,
                                        const ordered_json& request) {
  if (!request["text"].is_string()) {
    return absl::InvalidArgumentError("field `text` must be a string");
  }
  BATON_ASSIGN_OR_RETURN(const bool special, Flag(request, "add_special_tokens", true));
  BATON_ASSIGN_OR_RETURN(
      const std::vector<int32_t> ids,
      model.tokenizer->Encode(request["text"].get_ref<const std::string&>(), special));
  return ordered_json{{"ids", ids}};
}

absl::StatusOr<ordered_json> EncodeMessages(const text::ModelTokenizer& model,
                                            const ordered_json& request) {
  text::ChatRequest chat;
  chat.messages = request["messages"];
  BATON_ASSIGN_OR_RETURN(chat.add_generation_prompt, Flag(request, "add_generation_prompt", true));
  if (request.contains("tools")) {
    chat.tools = request["tools"];
  }
  const absl::Time now = absl::Now();
  BATON_ASSIGN_OR_RETURN(const std::string rendered, text::RenderChat(model, chat, now));
  BATON_ASSIGN_OR_RETURN(const std::vector<int32_t> ids, text::EncodeChat(model, chat, now));
  return ordered_json{{"rendered", rendered}, {"ids", ids}};
}

absl::StatusOr<std::vector<int32_t>> ReadIds(const ordered_json& value) {
  if (!value.is_array()) {
    return absl::InvalidArgumentError("field `ids` must be a list of token ids");
  }
  std::vector<int32_t> ids;
  for (const ordered_json& id : value) {
    if (!id.is_number_unsigned() || id.get<uint64_t>() > INT32_MAX) {
      return absl::InvalidArgumentError("field `ids` must be a list of token ids");
    }
    ids.push_back(static_cast<int32_t>(id.get<uint64_t>()));
  }
  return ids;
}

absl::StatusOr<ordered_json> DecodeIds(const text::ModelTokenizer& model,
                                       const ordered_json& request) {
  BATON_ASSIGN_OR_RETURN(const std::vector<int32_t> ids, ReadIds(request["ids"]));
  BATON_ASSIGN_OR_RETURN(const bool skip_special, Flag(request, "skip_special_tokens", false));
  text::IncrementalDetokenizer detokenizer(model.tokenizer.get(), skip_special);
  std::vector<std::string> pieces;
  pieces.reserve(ids.size());
  for (const int32_t id : ids) {
    pieces.push_back(detokenizer.Push(id));
  }
  return ordered_json{{"text", model.tokenizer->Decode(ids, skip_special)},
                      {"pieces", pieces},
                      {"final", detokenizer.Flush()}};
}

absl::StatusOr<ordered_json> Answer(const text::ModelTokenizer& model, const std::string& line) {
  BATON_ASSIGN_OR_RETURN(const ordered_json request,
                         text::ParseBoundedOrderedJson(line, kLineLimits));
  if (!request.is_object()) {
    return absl::InvalidArgumentError("the line is not a JSON object");
  }
  if (request.contains("text")) {
    return EncodeText(model, request);
  }
  if (request.contains("messages")) {
    return EncodeMessages(model, request);
  }
  if (request.contains("ids")) {
    return DecodeIds(model, request);
  }
  return absl::InvalidArgumentError("one of the fields text, messages and ids is needed");
}

absl::Status ReplaceChatTemplate(const std::string& path, text::ModelTokenizer& model) {
  BATON_ASSIGN_OR_RETURN(const std::string source,
                         checkpoint::ReadFile(path, text::jinja::kMaxTemplateBytes));
  absl::StatusOr<text::jinja::Template> compiled = text::jinja::Template::Compile(source);
  if (!compiled.ok()) {
    return WithContext(compiled.status(), path);
  }
  model.chat_templates.clear();
  model.chat_templates.push_back({"default", *std::move(compiled)});
  return absl::OkStatus();
}

}  // namespace

absl::Status TokenizeLines(const text::ModelTokenizer& model, std::istream& in, std::ostream& out) {
  std::string line;
  int64_t failed_lines = 0;
  while (std::getline(in, line)) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) {
      continue;
    }
    absl::StatusOr<ordered_json> answer = Answer(model, line);
    if (!answer.ok()) {
      ++failed_lines;
      answer = ordered_json{{"error", std::string(answer.status().message())}};
    }
    out << answer->dump(-1, ' ', false, ordered_json::error_handler_t::replace) << std::endl;
  }
  if (failed_lines > 0) {
    return absl::InvalidArgumentError(absl::StrCat(failed_lines, " lines could not be answered"));
  }
  return absl::OkStatus();
}

absl::Status RunTokenize() {
  const std::string directory = absl::GetFlag(FLAGS_model);
  BATON_RETURN_IF_ERROR(config::CheckFlagSet("model", directory));
  BATON_ASSIGN_OR_RETURN(text::ModelTokenizer model, text::LoadTokenizer(directory));
  const std::string chat_template = absl::GetFlag(FLAGS_chat_template);
  if (!chat_template.empty()) {
    BATON_RETURN_IF_ERROR(ReplaceChatTemplate(chat_template, model));
  }
  return TokenizeLines(model, std::cin, std::cout);
}

}  // namespace baton::lab
