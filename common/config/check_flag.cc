#include "common/config/check_flag.h"

#include <string>

#include "absl/strings/str_cat.h"

namespace baton::config {

absl::Status CheckFlagRange(std::string_view name, int64_t value, int64_t min, int64_t max) {
  if (value >= min && value <= max) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "flag --", std::string(name), " is ", value, "; it must be in [", min, ", ", max, "]"));
}

absl::Status CheckFlagChoice(std::string_view name,
                             std::string_view value,
                             std::initializer_list<std::string_view> choices) {
  std::string list;
  for (const std::string_view choice : choices) {
    if (choice == value) {
      return absl::OkStatus();
    }
    absl::StrAppend(&list, list.empty() ? "" : ", ", std::string(choice));
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "flag --", std::string(name), " is \"", std::string(value), "\"; choose one of ", list));
}

absl::Status CheckFlagSet(std::string_view name, std::string_view value) {
  if (!value.empty()) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("flag --", std::string(name), " is needed"));
}

}  // namespace baton::config
