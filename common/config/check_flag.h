// Checks of flag values before anything starts.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string_view>

#include "absl/status/status.h"

namespace baton::config {

// kInvalidArgument "flag --<name> ..." unless min <= value <= max.
absl::Status CheckFlagRange(std::string_view name, int64_t value, int64_t min, int64_t max);

// kInvalidArgument listing the choices unless `value` is one of them.
absl::Status CheckFlagChoice(std::string_view name,
                             std::string_view value,
                             std::initializer_list<std::string_view> choices);

// kInvalidArgument unless `value` is set.
absl::Status CheckFlagSet(std::string_view name, std::string_view value);

}  // namespace baton::config
