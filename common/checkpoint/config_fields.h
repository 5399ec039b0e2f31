// Typed, checked access to the fields of a JSON object.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "nlohmann/json_fwd.hpp"

namespace baton::checkpoint {

// Reads fields of one JSON object. A field that is absent or null is "not there"; one of the wrong
// type or out of range is kInvalidArgument naming file, field and limit. Borrows the object.
class ConfigFields {
 public:
  ConfigFields(const nlohmann::json& object, std::string_view where);

  bool Present(const char* name) const;  // there and not null
  bool Exists(const char* name) const;   // there, perhaps null

  absl::StatusOr<std::optional<int32_t>> OptionalInt(const char* name,
                                                     int32_t min,
                                                     int32_t max) const;
  absl::StatusOr<int32_t> Int(const char* name, int32_t min, int32_t max) const;
  // Finite numbers greater than zero.
  absl::StatusOr<double> PositiveNumber(const char* name, double fallback) const;
  absl::StatusOr<bool> Bool(const char* name, bool fallback) const;
  absl::StatusOr<std::optional<std::string>> OptionalString(const char* name) const;
  absl::StatusOr<std::vector<std::string>> Strings(const char* name, size_t max_count) const;
  // An integer or a list of integers, each in [0, max]; at most 64.
  absl::StatusOr<std::vector<int32_t>> IntOrInts(const char* name, int32_t max) const;
  // The object in field `name`, or null when it is not there.
  absl::StatusOr<const nlohmann::json*> Object(const char* name) const;

  // kInvalidArgument "where: field `name` ...".
  absl::Status Invalid(std::string_view name, std::string_view problem) const;
  absl::Status Unsupported(std::string_view name, std::string_view problem) const;

 private:
  const nlohmann::json* Find(const char* name) const;

  const nlohmann::json& object_;
  std::string where_;
};

}  // namespace baton::checkpoint
