// Values as text: Python's str and repr, and JSON.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

#include "common/text/jinja/budget.h"
#include "common/text/jinja/value.h"

namespace baton::text::jinja {

// str(value): what {{ value }} prints. Charges the budget for its length.
absl::StatusOr<std::string> ToText(const Value& value, Budget* budget);

// Layout of json.dumps.
struct JsonStyle {
  std::string indent;  // per level; empty with `multiline` off
  bool multiline = false;
  std::string item_separator = ", ";
  std::string key_separator = ": ";
  bool sort_keys = false;
  bool ensure_ascii = false;
};

// json.dumps(value). InvalidArgument for a value that JSON cannot hold (undefined, functions).
absl::StatusOr<std::string> ToJson(const Value& value, const JsonStyle& style, Budget* budget);

// repr of a float: the shortest digits that read back as the same number.
std::string FloatRepr(double value);

}  // namespace baton::text::jinja
