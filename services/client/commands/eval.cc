#include <cstdint>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"

#include "common/base/status_macros.h"
#include "common/config/check_flag.h"
#include "common/eval/case_list.h"
#include "common/eval/read_cases.h"
#include "common/eval/result_table.h"
#include "common/eval/result_writer.h"
#include "services/client/commands/commands.h"
#include "services/client/eval_run.h"
#include "services/client/flags.h"

ABSL_FLAG(std::string,
          cases,
          "",
          "eval: JSONL files (gzip allowed) or folders, separated by commas");
ABSL_FLAG(std::string, out, "", "eval: file for one JSON line per case");
ABSL_FLAG(int32_t, concurrency, 1, "eval: requests at once");
ABSL_FLAG(int64_t, limit, 0, "eval: at most this many cases; 0: all");
ABSL_FLAG(std::string, subset, "", "eval: file of case ids to run, one per line");
ABSL_FLAG(bool, resume, false, "eval: go on with an interrupted --out file");

namespace baton::client {
namespace {

absl::StatusOr<std::vector<eval::EvalCase>> CasesFromFlags() {
  BATON_ASSIGN_OR_RETURN(std::vector<eval::EvalCase> cases,
                         eval::ReadCases(absl::GetFlag(FLAGS_cases)));
  if (!absl::GetFlag(FLAGS_subset).empty()) {
    BATON_ASSIGN_OR_RETURN(const std::vector<std::string> ids,
                           eval::ReadCaseList(absl::GetFlag(FLAGS_subset)));
    BATON_ASSIGN_OR_RETURN(cases, eval::SelectCases(cases, ids));
  }
  const int64_t limit = absl::GetFlag(FLAGS_limit);
  if (limit > 0 && static_cast<size_t>(limit) < cases.size()) {
    cases.resize(static_cast<size_t>(limit));
  }
  return cases;
}

}  // namespace

absl::Status RunEval() {
  BATON_RETURN_IF_ERROR(config::CheckFlagSet("cases", absl::GetFlag(FLAGS_cases)));
  BATON_RETURN_IF_ERROR(config::CheckFlagSet("out", absl::GetFlag(FLAGS_out)));
  BATON_RETURN_IF_ERROR(
      config::CheckFlagRange("concurrency", absl::GetFlag(FLAGS_concurrency), 1, 4096));
  BATON_RETURN_IF_ERROR(
      config::CheckFlagRange("limit", absl::GetFlag(FLAGS_limit), 0, int64_t{1} << 40));
  BATON_ASSIGN_OR_RETURN(const std::vector<eval::EvalCase> cases, CasesFromFlags());
  BATON_ASSIGN_OR_RETURN(
      const auto writer,
      eval::ResultWriter::Open(absl::GetFlag(FLAGS_out), absl::GetFlag(FLAGS_resume)));
  BATON_ASSIGN_OR_RETURN(const auto connection, ConnectionFromFlags());
  const absl::Status status = RunCases(cases,
                                       {.model = absl::GetFlag(FLAGS_model),
                                        .kv_policy = absl::GetFlag(FLAGS_kv),
                                        .concurrency = absl::GetFlag(FLAGS_concurrency)},
                                       *connection,
                                       *writer);
  std::cout << eval::FormatTable(writer->rows());
  return status;
}

}  // namespace baton::client
