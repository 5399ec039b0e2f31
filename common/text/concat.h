// Joining text for messages.
#pragma once

#include <string>
#include <string_view>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace baton::text {

// absl::string_view is a type of its own in the packaged Abseil, so its functions do not take a
// std::string_view.
inline absl::string_view ToAbsl(std::string_view text) { return {text.data(), text.size()}; }

// What absl::StrCat takes for `value`: text as absl::string_view, anything else as it is.
template <typename T>
decltype(auto) ConcatArgument(const T& value) {
  if constexpr (std::is_convertible_v<const T&, std::string_view>) {
    return ToAbsl(value);
  } else {
    return (value);
  }
}

// absl::StrCat that takes std::string_view as well.
template <typename... Parts>
std::string Concat(const Parts&... parts) {
  return absl::StrCat(ConcatArgument(parts)...);
}

}  // namespace baton::text
