// Everything about text in a model directory.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

#include "common/text/jinja/template.h"
#include "common/text/tokenizer.h"

namespace baton::text {

// A chat template of a model directory; the name is "default" unless the directory lists several.
struct NamedTemplate {
  std::string name;
  jinja::Template compiled;
};

// The tokenizer of a model directory with what belongs to it. Immutable after loading and
// thread-safe.
struct ModelTokenizer {
  std::unique_ptr<const Tokenizer> tokenizer;
  // Texts by role: "bos_token", "eos_token", "pad_token" ..., only those that the model names.
  std::vector<std::pair<std::string, std::string>> special_tokens;
  std::optional<int32_t> bos_id;
  std::optional<int32_t>
      eos_id;  // one id; generation_config.json may list more ids that end a sequence
  std::vector<NamedTemplate> chat_templates;

  // The text of a role, nullptr when the model names none.
  const std::string* SpecialToken(std::string_view role) const;
};

// Reads `model_dir`: tokenizer.json (required); tokenizer_config.json for special tokens (a string,
// or an object with "content") and chat templates (one string, or a list of {name, template});
// special_tokens_map.json for roles that tokenizer_config.json does not name; chat_template.jinja,
// which takes the place of the "default" template. NotFound without tokenizer.json; else the error
// of the file that is wrong, with its name. Reads files, so it may block.
absl::StatusOr<ModelTokenizer> LoadTokenizer(const std::string& model_dir);

}  // namespace baton::text
