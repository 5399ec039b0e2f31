// Reads finished result files.
#pragma once

#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

#include "common/eval/result_row.h"

namespace baton::eval {

// The rows of `paths` (comma-separated JSONL files) in the order of files and lines. A case that
// was answered with the same policy in several files counts once when the answers are the same
// tokens. kInvalidArgument names file and line of what is no row, or of an answer that differs;
// kNotFound a file that isn't there.
absl::StatusOr<std::vector<ResultRow>> ReadRows(std::string_view paths);

}  // namespace baton::eval
