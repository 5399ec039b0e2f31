// Arguments of filters, tests, methods and functions.
#pragma once

#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

#include "common/text/jinja/value.h"

namespace baton::text::jinja {

struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> keywords;
};

// Arguments matched to parameter names, in the order of the names; nullopt where none was given.
using BoundArguments = std::vector<std::optional<Value>>;

// InvalidArgument, naming `function`, for too many arguments, an unknown keyword or one given
// twice.
absl::StatusOr<BoundArguments> Bind(std::string_view function,
                                    std::initializer_list<std::string_view> parameters,
                                    const Arguments& arguments);

// The argument as an integer, string or truth value; `fallback` when it was not given (or is none).
// InvalidArgument for another kind.
absl::StatusOr<int64_t> IntArgument(const std::optional<Value>& argument, int64_t fallback);
absl::StatusOr<std::string> StringArgument(const std::optional<Value>& argument,
                                           std::string_view fallback);
bool BoolArgument(const std::optional<Value>& argument, bool fallback);

}  // namespace baton::text::jinja
