// A fixed selection of cases.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "common/eval/eval_case.h"

namespace baton::eval {

// Reads case ids, one per line; empty lines and lines that start with '#' are skipped. kNotFound or
// kInvalidArgument (an id twice, more than 1,000,000) names file and line.
absl::StatusOr<std::vector<std::string>> ReadCaseList(const std::string& path);

// The cases with these ids, in the order of `ids`. kNotFound names the first that is not there.
absl::StatusOr<std::vector<EvalCase>> SelectCases(const std::vector<EvalCase>& cases,
                                                  const std::vector<std::string>& ids);

}  // namespace baton::eval
