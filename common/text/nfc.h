// Unicode normalisation form C.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace baton::text {

// `text` (valid UTF-8) in NFC, by ICU. Linear in the length also for long runs of combining marks.
// Thread-safe.
absl::StatusOr<std::string> NormalizeNfc(std::string_view text);

}  // namespace baton::text
