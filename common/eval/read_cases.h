// Reads evaluation sets.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

#include "common/eval/eval_case.h"

namespace baton::eval {

// One JSON object; kInvalidArgument names the field that is missing or of the wrong type.
absl::StatusOr<EvalCase> ParseCase(std::string_view line);

// Reads every case of `paths` (comma-separated): JSONL files, gzip allowed, or folders whose
// *.jsonl and *.jsonl.gz files are read in order of name. Errors name file and line. A case id that
// occurs twice is an error. At most 1,000,000 cases of at most 16 MiB.
absl::StatusOr<std::vector<EvalCase>> ReadCases(std::string_view paths);

}  // namespace baton::eval
