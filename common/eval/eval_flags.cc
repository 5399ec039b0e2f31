#include "common/eval/eval_flags.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

#include "common/base/status_macros.h"
#include "common/config/check_flag.h"
#include "common/eval/case_list.h"
#include "common/eval/eval_case.h"
#include "common/eval/read_cases.h"

ABSL_FLAG(std::string,
          cases,
          "",
          "eval: JSONL files (gzip allowed) or folders, separated by commas");
ABSL_FLAG(std::string, subset, "", "eval: file of case ids to run, one per line");
ABSL_FLAG(int64_t, limit, 0, "eval: at most this many cases; 0: all");
ABSL_FLAG(std::string,
          shard,
          "",
          "eval: i/n: every n-th case from the i-th (from 0) on, to split a run over processes");
ABSL_FLAG(
    bool,
    sessions,
    false,
    "eval: keeps the KV of a conversation for its next turn; else every turn is computed whole");
ABSL_FLAG(bool, resume, false, "eval: go on with an interrupted --out file");

namespace baton::eval {
namespace {

constexpr uint32_t kMaxShards = 1 << 16;

// Keeps the cases of shard "i/n".
absl::StatusOr<std::vector<EvalCase>> TakeShard(const std::string& shard,
                                                std::vector<EvalCase> cases) {
  const size_t slash = std::min(shard.find('/'), shard.size());
  uint32_t index = 0;
  uint32_t count = 0;
  if (!absl::SimpleAtoi(shard.substr(0, slash), &index) ||
      !absl::SimpleAtoi(shard.substr(std::min(slash + 1, shard.size())), &count) ||
      count > kMaxShards || index >= count) {
    return absl::InvalidArgumentError(absl::StrCat(
        "flag --shard is \"", shard, "\"; it must be i/n with 0 <= i < n <= ", kMaxShards));
  }
  std::vector<EvalCase> taken;
  for (size_t i = index; i < cases.size(); i += count) {
    taken.push_back(std::move(cases[i]));
  }
  return taken;
}

}  // namespace

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
  const std::string shard = absl::GetFlag(FLAGS_shard);
  return shard.empty() ? cases : TakeShard(shard, std::move(cases));
}

}  // namespace baton::eval
