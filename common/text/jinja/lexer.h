// Splits a chat template into tokens.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace baton::text::jinja {

enum class TokenKind {
  kText,         // template text between tags, white space control applied
  kOutputBegin,  // {{
  kOutputEnd,    // }}
  kBlockBegin,   // {%
  kBlockEnd,     // %}
  kName,
  kString,  // quotes removed, escapes resolved
  kInteger,
  kFloat,
  kOperator,  // text holds it
  kEnd,
};

struct Token {
  TokenKind kind = TokenKind::kEnd;
  std::string text;
  int64_t integer = 0;
  double number = 0;
  int line = 0;  // 1-based
};

// Tokens of `source` (valid UTF-8), ended by kEnd, as Jinja2 lexes it with trim_blocks and
// lstrip_blocks on and keep_trailing_newline off (the settings of HuggingFace transformers).
// InvalidArgument with the line otherwise.
absl::StatusOr<std::vector<Token>> Lex(std::string_view source);

}  // namespace baton::text::jinja
