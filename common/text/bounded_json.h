// JSON from outside: parsed without exceptions and within limits of size, depth and number of
// members.
#pragma once

#include <cstddef>
#include <string_view>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace baton::text {

// `max_members` counts object members in the whole text. It matters for ordered_json, whose objects
// are searched linearly, so that parsing costs the square of the members of one object.
struct JsonLimits {
  size_t max_bytes = size_t{256} << 20;
  size_t max_depth = 32;
  size_t max_members = size_t{1} << 24;
};

// Limits for what a client sends along with a chat (tool schemas, template arguments).
inline constexpr JsonLimits kRequestJsonLimits{
    .max_bytes = size_t{4} << 20, .max_depth = 48, .max_members = 10000};

// Parses `json_text`; InvalidArgument with the place for malformed text or a limit exceeded.
// Thread-safe.
absl::StatusOr<nlohmann::json> ParseBoundedJson(std::string_view json_text,
                                                const JsonLimits& limits);

// The same, keeping the order of object members, which chat templates print.
absl::StatusOr<nlohmann::ordered_json> ParseBoundedOrderedJson(std::string_view json_text,
                                                               const JsonLimits& limits);

}  // namespace baton::text
