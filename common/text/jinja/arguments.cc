#include "common/text/jinja/arguments.h"

#include <algorithm>

#include "absl/status/status.h"

#include "common/text/concat.h"

namespace baton::text::jinja {

absl::StatusOr<BoundArguments> Bind(std::string_view function,
                                    std::initializer_list<std::string_view> parameters,
                                    const Arguments& arguments) {
  if (arguments.positional.size() > parameters.size()) {
    return absl::InvalidArgumentError(
        Concat(function, " takes at most ", parameters.size(), " arguments"));
  }
  BoundArguments bound(parameters.size());
  std::copy(arguments.positional.begin(), arguments.positional.end(), bound.begin());
  for (const auto& [name, value] : arguments.keywords) {
    const auto* found = std::find(parameters.begin(), parameters.end(), name);
    if (found == parameters.end()) {
      return absl::InvalidArgumentError(Concat(function, " has no argument named ", name));
    }
    std::optional<Value>& slot = bound[static_cast<size_t>(found - parameters.begin())];
    if (slot.has_value())
      return absl::InvalidArgumentError(Concat(function, " got ", name, " twice"));
    slot = value;
  }
  return bound;
}

absl::StatusOr<int64_t> IntArgument(const std::optional<Value>& argument, int64_t fallback) {
  if (!argument.has_value() || argument->IsNone()) return fallback;
  if (argument->IsInt() || argument->IsBool()) return argument->IntValue();
  return absl::InvalidArgumentError(Concat("expected an int, got ", argument->TypeName()));
}

absl::StatusOr<std::string> StringArgument(const std::optional<Value>& argument,
                                           std::string_view fallback) {
  if (!argument.has_value() || argument->IsNone()) return std::string(fallback);
  if (argument->IsString()) return argument->AsString();
  return absl::InvalidArgumentError(Concat("expected a str, got ", argument->TypeName()));
}

bool BoolArgument(const std::optional<Value>& argument, bool fallback) {
  return argument.has_value() ? argument->Truthy() : fallback;
}

}  // namespace baton::text::jinja
