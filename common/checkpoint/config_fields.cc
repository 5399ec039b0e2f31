#include "common/checkpoint/config_fields.h"

#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

namespace baton::checkpoint {
namespace {

using nlohmann::json;

constexpr size_t kMaxIds = 64;

// The value as an int32 in [min, max], or nothing.
std::optional<int32_t> IntInRange(const json& value, int32_t min, int32_t max) {
  if (!value.is_number_integer()) {
    return std::nullopt;
  }
  if (value.is_number_unsigned() &&
      value.get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int32_t>::max())) {
    return std::nullopt;
  }
  const int64_t number = value.get<int64_t>();
  if (number < min || number > max) {
    return std::nullopt;
  }
  return static_cast<int32_t>(number);
}

}  // namespace

ConfigFields::ConfigFields(const json& object, std::string_view where)
    : object_(object), where_(where) {}

const json* ConfigFields::Find(const char* name) const {
  const auto it = object_.find(name);
  return it == object_.end() || it->is_null() ? nullptr : &*it;
}

bool ConfigFields::Present(const char* name) const { return Find(name) != nullptr; }

bool ConfigFields::Exists(const char* name) const { return object_.find(name) != object_.end(); }

absl::Status ConfigFields::Invalid(std::string_view name, std::string_view problem) const {
  return absl::InvalidArgumentError(
      absl::StrCat(where_, ": field `", std::string(name), "` ", std::string(problem)));
}

absl::Status ConfigFields::Unsupported(std::string_view name, std::string_view problem) const {
  return absl::UnimplementedError(
      absl::StrCat(where_, ": field `", std::string(name), "` ", std::string(problem)));
}

absl::StatusOr<std::optional<int32_t>> ConfigFields::OptionalInt(const char* name,
                                                                 int32_t min,
                                                                 int32_t max) const {
  const json* value = Find(name);
  if (value == nullptr) {
    return std::optional<int32_t>();
  }
  const std::optional<int32_t> number = IntInRange(*value, min, max);
  if (!number.has_value()) {
    return Invalid(name, absl::StrCat("must be an integer in [", min, ", ", max, "]"));
  }
  return number;
}

absl::StatusOr<int32_t> ConfigFields::Int(const char* name, int32_t min, int32_t max) const {
  absl::StatusOr<std::optional<int32_t>> number = OptionalInt(name, min, max);
  if (!number.ok()) {
    return number.status();
  }
  if (!number->has_value()) {
    return Invalid(name, "is missing");
  }
  return **number;
}

absl::StatusOr<double> ConfigFields::PositiveNumber(const char* name, double fallback) const {
  const json* value = Find(name);
  if (value == nullptr) {
    return fallback;
  }
  const double number = value->is_number() ? value->get<double>() : 0.0;
  if (!std::isfinite(number) || number <= 0.0) {
    return Invalid(name, "must be a finite number greater than zero");
  }
  return number;
}

absl::StatusOr<bool> ConfigFields::Bool(const char* name, bool fallback) const {
  const json* value = Find(name);
  if (value == nullptr) {
    return fallback;
  }
  if (!value->is_boolean()) {
    return Invalid(name, "must be true or false");
  }
  return value->get<bool>();
}

absl::StatusOr<std::optional<std::string>> ConfigFields::OptionalString(const char* name) const {
  const json* value = Find(name);
  if (value == nullptr) {
    return std::optional<std::string>();
  }
  if (!value->is_string()) {
    return Invalid(name, "must be a string");
  }
  return std::optional<std::string>(value->get<std::string>());
}

absl::StatusOr<std::vector<std::string>> ConfigFields::Strings(const char* name,
                                                               size_t max_count) const {
  std::vector<std::string> strings;
  const json* value = Find(name);
  if (value == nullptr) {
    return strings;
  }
  if (!value->is_array() || value->size() > max_count) {
    return Invalid(name, absl::StrCat("must be a list of at most ", max_count, " strings"));
  }
  for (const json& element : *value) {
    if (!element.is_string()) {
      return Invalid(name, "must be a list of strings");
    }
    strings.push_back(element.get<std::string>());
  }
  return strings;
}

absl::StatusOr<std::vector<int32_t>> ConfigFields::IntOrInts(const char* name, int32_t max) const {
  std::vector<int32_t> numbers;
  const json* value = Find(name);
  if (value == nullptr) {
    return numbers;
  }
  const auto append = [&](const json& element) {
    const std::optional<int32_t> number = IntInRange(element, 0, max);
    if (number.has_value()) {
      numbers.push_back(*number);
    }
    return number.has_value();
  };
  bool valid = true;
  if (value->is_array()) {
    valid = value->size() <= kMaxIds;
    for (size_t i = 0; valid && i < value->size(); ++i) {
      valid = append((*value)[i]);
    }
  } else {
    valid = append(*value);
  }
  if (!valid) {
    return Invalid(
        name,
        absl::StrCat(
            "must be an integer in [0, ", max, "] or a list of at most ", kMaxIds, " of them"));
  }
  return numbers;
}

absl::StatusOr<const json*> ConfigFields::Object(const char* name) const {
  const json* value = Find(name);
  if (value != nullptr && !value->is_object()) {
    return Invalid(name, "must be an object");
  }
  return value;
}

}  // namespace baton::checkpoint
