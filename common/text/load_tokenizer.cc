#include "common/text/load_tokenizer.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "absl/status/status.h"

#include "common/base/status_context.h"
#include "common/base/status_macros.h"
#include "common/text/bounded_json.h"
#include "common/text/concat.h"

namespace baton::text {
namespace {

constexpr std::string_view kDefaultTemplate = "default";
constexpr std::array<const char*, 7> kRoles = {
    "bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"};

// The whole file; NotFound when there is none.
absl::StatusOr<std::string> ReadFile(const std::filesystem::path& path) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) {
    return absl::NotFoundError(Concat("no file ", path.string()));
  }
  const uintmax_t size = std::filesystem::file_size(path, error);
  if (error) return absl::UnavailableError(Concat(path.string(), ": ", error.message()));
  if (size > JsonLimits{}.max_bytes) {
    return absl::InvalidArgumentError(
        Concat(path.string(), ": ", size, " bytes are over the limit of ", JsonLimits{}.max_bytes));
  }
  std::string content(size, '\0');
  std::ifstream stream(path, std::ios::binary);
  stream.read(content.data(), static_cast<std::streamsize>(size));
  if (!stream) return absl::UnavailableError(Concat("cannot read ", path.string()));
  return content;
}

// The object in a JSON file; an empty object when the file does not exist.
absl::StatusOr<nlohmann::json> ReadOptionalObject(const std::filesystem::path& path) {
  const absl::StatusOr<std::string> content = ReadFile(path);
  if (absl::IsNotFound(content.status())) return nlohmann::json::object();
  BATON_RETURN_IF_ERROR(content.status());
  absl::StatusOr<nlohmann::json> parsed = ParseBoundedJson(*content, JsonLimits{});
  if (!parsed.ok()) return WithContext(parsed.status(), path.string());
  if (!parsed->is_object())
    return absl::InvalidArgumentError(Concat(path.string(), ": must hold an object"));
  return parsed;
}

// "text" or {"content": "text", ...}; an empty result for null or an absent key.
absl::StatusOr<std::string> ReadSpecialToken(const nlohmann::json& config, const char* role) {
  const auto found = config.find(role);
  if (found == config.end() || found->is_null()) return std::string();
  if (found->is_string()) return found->get<std::string>();
  if (found->is_object() && found->contains("content") && (*found)["content"].is_string()) {
    return (*found)["content"].get<std::string>();
  }
  return absl::InvalidArgumentError(
      Concat(role, " must be a string or an object with \"content\""));
}

absl::Status ReadSpecialTokens(const nlohmann::json& config, ModelTokenizer* model) {
  for (const char* role : kRoles) {
    if (model->SpecialToken(role) != nullptr) continue;
    BATON_ASSIGN_OR_RETURN(std::string content, ReadSpecialToken(config, role));
    if (!content.empty()) model->special_tokens.emplace_back(role, std::move(content));
  }
  return absl::OkStatus();
}

absl::Status AddTemplate(std::string name, std::string_view source, ModelTokenizer* model) {
  absl::StatusOr<jinja::Template> compiled = jinja::Template::Compile(source);
  if (!compiled.ok()) return WithContext(compiled.status(), Concat("template \"", name, "\""));
  auto& templates = model->chat_templates;
  templates.erase(std::remove_if(templates.begin(),
                                 templates.end(),
                                 [&](const NamedTemplate& t) { return t.name == name; }),
                  templates.end());
  templates.push_back({std::move(name), *std::move(compiled)});
  return absl::OkStatus();
}

absl::Status ReadTemplates(const nlohmann::json& config, ModelTokenizer* model) {
  const auto found = config.find("chat_template");
  if (found == config.end() || found->is_null()) return absl::OkStatus();
  if (found->is_string()) {
    return AddTemplate(std::string(kDefaultTemplate), found->get_ref<const std::string&>(), model);
  }
  if (!found->is_array())
    return absl::InvalidArgumentError("chat_template must be a string or a list");
  for (const nlohmann::json& entry : *found) {
    const bool complete = entry.is_object() && entry.contains("name") &&
                          entry["name"].is_string() && entry.contains("template") &&
                          entry["template"].is_string();
    if (!complete)
      return absl::InvalidArgumentError(
          "chat_template entries need the strings \"name\" and \"template\"");
    BATON_RETURN_IF_ERROR(AddTemplate(
        entry["name"].get<std::string>(), entry["template"].get_ref<const std::string&>(), model));
  }
  return absl::OkStatus();
}

// With chat_template.jinja the template of the config is not even compiled: the file replaces it.
absl::Status LoadTemplates(const std::filesystem::path& dir,
                           const nlohmann::json& config,
                           ModelTokenizer* model) {
  const absl::StatusOr<std::string> file = ReadFile(dir / "chat_template.jinja");
  if (!file.ok() && !absl::IsNotFound(file.status())) return file.status();
  const bool config_has_list =
      config.contains("chat_template") && config["chat_template"].is_array();
  if (!file.ok() || config_has_list) {
    BATON_RETURN_IF_ERROR(
        WithContext(ReadTemplates(config, model), (dir / "tokenizer_config.json").string()));
  }
  if (!file.ok()) return absl::OkStatus();
  return WithContext(AddTemplate(std::string(kDefaultTemplate), *file, model),
                     (dir / "chat_template.jinja").string());
}

absl::Status FindId(const ModelTokenizer& model,
                    std::string_view role,
                    std::optional<int32_t>* id) {
  const std::string* content = model.SpecialToken(role);
  if (content == nullptr) return absl::OkStatus();
  *id = model.tokenizer->TokenId(*content);
  if (id->has_value()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      Concat(role, " \"", *content, "\" is not a token of tokenizer.json"));
}

}  // namespace

const std::string* ModelTokenizer::SpecialToken(std::string_view role) const {
  for (const auto& [name, content] : special_tokens) {
    if (name == role) return &content;
  }
  return nullptr;
}

absl::StatusOr<ModelTokenizer> LoadTokenizer(const std::string& model_dir) {
  const std::filesystem::path dir(model_dir);
  ModelTokenizer model;
  BATON_ASSIGN_OR_RETURN(const std::string tokenizer_json, ReadFile(dir / "tokenizer.json"));
  absl::StatusOr<std::unique_ptr<const Tokenizer>> tokenizer = Tokenizer::FromJson(tokenizer_json);
  if (!tokenizer.ok()) return WithContext(tokenizer.status(), model_dir);
  model.tokenizer = *std::move(tokenizer);
  for (const char* file : {"tokenizer_config.json", "special_tokens_map.json"}) {
    const std::filesystem::path path = dir / file;
    BATON_ASSIGN_OR_RETURN(const nlohmann::json config, ReadOptionalObject(path));
    BATON_RETURN_IF_ERROR(WithContext(ReadSpecialTokens(config, &model), path.string()));
    if (std::string_view(file) == "tokenizer_config.json")
      BATON_RETURN_IF_ERROR(LoadTemplates(dir, config, &model));
  }
  BATON_RETURN_IF_ERROR(WithContext(FindId(model, "bos_token", &model.bos_id), model_dir));
  BATON_RETURN_IF_ERROR(WithContext(FindId(model, "eos_token", &model.eos_id), model_dir));
  return model;
}

}  // namespace baton::text
