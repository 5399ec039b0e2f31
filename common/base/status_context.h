// Adds where and what to a Status that travels up.
#pragma once

#include <string_view>

#include "absl/status/status.h"

namespace baton {

// "context: message" with the same code and payloads; OK stays OK.
absl::Status WithContext(const absl::Status& status, std::string_view context);

}  // namespace baton
