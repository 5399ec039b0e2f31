// Strict access to the members of a JSON object.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace baton::kv {

// Parses an object in which no member of any object is given twice. kInvalidArgument,
// "calibration: ...".
absl::StatusOr<nlohmann::ordered_json> ParseStrictJson(std::string_view text);

// An object or list and the path to it from the top: "families.diffkv". Errors are
// kInvalidArgument, "calibration: member `path` ...". Borrows the value.
class JsonObject {
 public:
  // kInvalidArgument when `value` is no object or has a member that is not among `members`.
  static absl::StatusOr<JsonObject> Open(const nlohmann::ordered_json& value,
                                         std::string path,
                                         std::initializer_list<std::string_view> members);

  bool Has(std::string_view member) const;
  // The member, which has to be there.
  absl::StatusOr<const nlohmann::ordered_json*> Get(std::string_view member) const;
  absl::StatusOr<std::string> String(std::string_view member) const;
  absl::StatusOr<int64_t> Int(std::string_view member, int64_t least, int64_t most) const;
  // A finite number in [0, most].
  absl::StatusOr<double> Number(std::string_view member, double most) const;
  // A list of exactly `size` elements.
  absl::StatusOr<const nlohmann::ordered_json*> List(std::string_view member, size_t size) const;

  std::string PathOf(std::string_view member) const;
  absl::Status Invalid(std::string_view member, std::string_view problem) const;

 private:
  JsonObject(const nlohmann::ordered_json& value, std::string path)
      : value_(&value), path_(std::move(path)) {}

  const nlohmann::ordered_json* value_;
  std::string path_;
};

}  // namespace baton::kv
