// Files of one JSON text per line.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace baton::eval {

// Calls `take` with every line of a plain or gzip file that is not blank, up to the first error,
// which gets "path line N: " in front. kNotFound: no such file; kInvalidArgument: a line of more
// than 16 MiB; kDataLoss: damaged compression.
absl::Status ForEachLine(const std::string& path,
                         const std::function<absl::Status(std::string_view line)>& take);

}  // namespace baton::eval
