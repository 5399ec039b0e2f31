// Small files as a whole.
#pragma once

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"

namespace baton::checkpoint {

// The bytes of `path`. kNotFound when it is not there, kInvalidArgument naming the limit when it
// exceeds `max_bytes`.
absl::StatusOr<std::string> ReadFile(const std::string& path, size_t max_bytes);

}  // namespace baton::checkpoint
