#include "common/kv/calibration/json_object.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

#include "common/base/status_macros.h"

namespace baton::kv {
namespace {

using Json = nlohmann::ordered_json;

// Longest part of an input that a message repeats.
constexpr size_t kMaxQuotedBytes = 64;
// Nesting of a calibration file is 4.
constexpr int kMaxDepth = 8;

std::string Quote(std::string_view text) {
  const std::string_view shown = text.substr(0, kMaxQuotedBytes);
  return absl::StrCat("`",
                      absl::CHexEscape(absl::string_view(shown.data(), shown.size())),
                      shown.size() < text.size() ? "..." : "",
                      "`");
}

// Looks at an object's members while they are parsed.
class StrictObjects {
 public:
  bool operator()(int depth, Json::parse_event_t event, Json& parsed) {
    if (depth > kMaxDepth) {
      fault_ = absl::StrCat("nested deeper than ", kMaxDepth, " levels");
      return false;
    }
    if (event == Json::parse_event_t::object_start) {
      open_.emplace_back();
    } else if (event == Json::parse_event_t::object_end && !open_.empty()) {
      open_.pop_back();
    } else if (event == Json::parse_event_t::key && !open_.empty() &&
               !open_.back().insert(parsed.get<std::string>()).second) {
      fault_ = absl::StrCat("member ", Quote(parsed.get<std::string>()), " is given twice");
      return false;
    }
    return true;
  }
  const std::string& fault() const { return fault_; }

 private:
  std::vector<std::set<std::string>> open_;  // names so far, by nesting
  std::string fault_;
};

}  // namespace

absl::StatusOr<Json> ParseStrictJson(std::string_view text) {
  StrictObjects objects;
  try {
    Json value = Json::parse(text.begin(), text.end(), std::ref(objects));
    if (!objects.fault().empty()) {
      return absl::InvalidArgumentError(absl::StrCat("calibration: ", objects.fault()));
    }
    return value;
  } catch (const Json::exception& error) {
    return absl::InvalidArgumentError(absl::StrCat(
        "calibration: malformed JSON: ",
        absl::CHexEscape(absl::string_view(error.what()).substr(0, 4 * kMaxQuotedBytes))));
  }
}

absl::StatusOr<JsonObject> JsonObject::Open(const Json& value,
                                            std::string path,
                                            std::initializer_list<std::string_view> members) {
  JsonObject object(value, std::move(path));
  if (!value.is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "calibration: ",
        object.path_.empty() ? "the file" : absl::StrCat("member `", object.path_, "`"),
        " must be an object"));
  }
  for (const auto& [name, member] : value.items()) {
    if (std::ranges::find(members, name) == members.end()) {
      std::string known;
      for (const std::string_view allowed : members) {
        absl::StrAppend(&known, known.empty() ? "" : ", ", std::string(allowed));
      }
      return absl::InvalidArgumentError(absl::StrCat(
          "calibration: unknown member ", Quote(object.PathOf(name)), "; known here: ", known));
    }
  }
  return object;
}

bool JsonObject::Has(std::string_view member) const {
  return value_->contains(std::string(member));
}

absl::StatusOr<const Json*> JsonObject::Get(std::string_view member) const {
  const auto found = value_->find(std::string(member));
  if (found == value_->end()) {
    return Invalid(member, "is missing");
  }
  return &*found;
}

absl::StatusOr<std::string> JsonObject::String(std::string_view member) const {
  BATON_ASSIGN_OR_RETURN(const Json* value, Get(member));
  if (!value->is_string()) {
    return Invalid(member, "must be a string");
  }
  return value->get<std::string>();
}

absl::StatusOr<int64_t> JsonObject::Int(std::string_view member,
                                        int64_t least,
                                        int64_t most) const {
  BATON_ASSIGN_OR_RETURN(const Json* value, Get(member));
  // An unsigned number beyond int64 is not below `most`.
  const bool fits = value->is_number_integer() &&
                    !(value->is_number_unsigned() && value->get<uint64_t>() > uint64_t{INT64_MAX});
  if (!fits || value->get<int64_t>() < least || value->get<int64_t>() > most) {
    return Invalid(member, absl::StrCat("must be an integer in ", least, "..", most));
  }
  return value->get<int64_t>();
}

absl::StatusOr<double> JsonObject::Number(std::string_view member, double most) const {
  BATON_ASSIGN_OR_RETURN(const Json* value, Get(member));
  const double number = value->is_number() ? value->get<double>() : -1.0;
  if (!std::isfinite(number) || number < 0.0 || number > most) {
    return Invalid(member, absl::StrCat("must be a number in 0..", most));
  }
  return number;
}

absl::StatusOr<const Json*> JsonObject::List(std::string_view member, size_t size) const {
  BATON_ASSIGN_OR_RETURN(const Json* value, Get(member));
  if (!value->is_array() || value->size() != size) {
    return Invalid(member,
                   value->is_array() ? absl::StrCat("has ",
                                                    value->size(),
                                                    " elements; it needs one for each of ",
                                                    size,
                                                    " stored layers")
                                     : absl::StrCat("must be a list of ", size, " elements"));
  }
  return value;
}

std::string JsonObject::PathOf(std::string_view member) const {
  return path_.empty() ? std::string(member) : absl::StrCat(path_, ".", std::string(member));
}

absl::Status JsonObject::Invalid(std::string_view member, std::string_view problem) const {
  return absl::InvalidArgumentError(
      absl::StrCat("calibration: member `", PathOf(member), "` ", std::string(problem)));
}

}  // namespace baton::kv
