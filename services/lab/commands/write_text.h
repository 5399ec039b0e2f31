// Output files of the lab.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace baton::lab {

// Writes a file, in place of one that is there. kUnavailable when it can't be written.
absl::Status WriteText(const std::string& path, const std::string& text);

}  // namespace baton::lab
