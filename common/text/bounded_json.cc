#include "common/text/bounded_json.h"

#include <string>

#include "absl/status/status.h"

#include "common/base/status_macros.h"
#include "common/text/concat.h"

namespace baton::text {
namespace {

// One pass over the raw text, strings skipped, so that the limits hold before anything is
// allocated.
absl::Status CheckLimits(std::string_view text, const JsonLimits& limits) {
  if (text.size() > limits.max_bytes) {
    return absl::InvalidArgumentError(
        Concat("JSON of ", text.size(), " bytes is over the limit of ", limits.max_bytes));
  }
  size_t depth = 0;
  size_t members = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') {
        ++i;
      } else if (c == '"') {
        in_string = false;
      }
      continue;
    }
    if (c == '"') in_string = true;
    if (c == ':') ++members;
    if ((c == ']' || c == '}') && depth > 0) --depth;
    if ((c == '[' || c == '{') && ++depth > limits.max_depth) {
      return absl::InvalidArgumentError(
          Concat("JSON nested deeper than ", limits.max_depth, " levels at byte ", i));
    }
  }
  if (members > limits.max_members) {
    return absl::InvalidArgumentError(
        Concat("JSON with ", members, " object members is over the limit of ", limits.max_members));
  }
  return absl::OkStatus();
}

template <typename Json>
absl::StatusOr<Json> Parse(std::string_view text, const JsonLimits& limits) {
  BATON_RETURN_IF_ERROR(CheckLimits(text, limits));
  try {
    return Json::parse(text.begin(), text.end());
  } catch (const nlohmann::json::exception& error) {
    return absl::InvalidArgumentError(Concat("malformed JSON: ", error.what()));
  }
}

}  // namespace

absl::StatusOr<nlohmann::json> ParseBoundedJson(std::string_view json_text,
                                                const JsonLimits& limits) {
  return Parse<nlohmann::json>(json_text, limits);
}

absl::StatusOr<nlohmann::ordered_json> ParseBoundedOrderedJson(std::string_view json_text,
                                                               const JsonLimits& limits) {
  return Parse<nlohmann::ordered_json>(json_text, limits);
}

}  // namespace baton::text
