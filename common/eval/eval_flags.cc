#include "common/eval/eval_flags.h"

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/flags/flag.h"

#include "common/base/status_macros.h"
#include "common/config/check_flag.h"
#include "common/eval/case_list.h"
#include "common/eval/read_cases.h"

ABSL_FLAG(std::string,
          cases,
          "",
          "eval: JSONL files (gzip allowed) or folders, separated by commas");
ABSL_FLAG(std::string, subset, "", "eval: file of case ids to run, one per line");
ABSL_FLAG(int64_t, limit, 0, "eval: at most this many cases; 0: all");
ABSL_FLAG(bool, resume, false, "eval: go on with an interrupted --out file");

namespace baton::eval {

absl::StatusOr<std::vector<EvalCase>> CasesFromFlags() {
  BATON_RETURN_IF_ERROR(config::CheckFlagSet("cases", absl::GetFlag(FLAGS_cases)));
  const int64_t limit = absl::GetFlag(FLAGS_limit);
  BATON_RETURN_IF_ERROR(config::CheckFlagRange("limit", limit, 0, int64_t{1} << 40));
  BATON_ASSIGN_OR_RETURN(std::vector<EvalCase> cases, ReadCases(absl::GetFlag(FLAGS_cases)));
  if (!absl::GetFlag(FLAGS_subset).empty()) {
    BATON_ASSIGN_OR_RETURN(const std::vector<std::string> ids,
                           ReadCaseList(absl::GetFlag(FLAGS_subset)));
    BATON_ASSIGN_OR_RETURN(cases, SelectCases(cases, ids));
  }
  if (limit > 0 && static_cast<size_t>(limit) < cases.size()) {
    cases.resize(static_cast<size_t>(limit));
  }
  return cases;
}

}  // namespace baton::eval
