// The command line that evaluations share, whatever answers the cases.
#pragma once

#include <vector>

#include "absl/flags/declare.h"
#include "absl/status/statusor.h"

#include "common/eval/eval_case.h"

ABSL_DECLARE_FLAG(bool, resume);
ABSL_DECLARE_FLAG(bool, sessions);

namespace baton::eval {

// The cases that --cases, --subset, --limit and --shard, in this order, ask for. kInvalidArgument
// names the flag, other errors file and line.
absl::StatusOr<std::vector<EvalCase>> CasesFromFlags();

}  // namespace baton::eval
