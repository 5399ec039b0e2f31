#include <cstdint>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "absl/flags/flag.h"

#include "common/base/status_macros.h"
#include "common/config/check_flag.h"
#include "common/eval/eval_case.h"
#include "common/eval/eval_flags.h"
#include "common/eval/result_table.h"
#include "common/eval/result_writer.h"
#include "services/client/commands/commands.h"
#include "services/client/eval_run.h"
#include "services/client/flags.h"

ABSL_FLAG(std::string, out, "", "eval: file for one JSON line per case");
ABSL_FLAG(int32_t, concurrency, 1, "eval: requests at once");

namespace baton::client {
absl::Status RunEval() {
  BATON_RETURN_IF_ERROR(config::CheckFlagSet("out", absl::GetFlag(FLAGS_out)));
  BATON_RETURN_IF_ERROR(
      config::CheckFlagRange("concurrency", absl::GetFlag(FLAGS_concurrency), 1, 4096));
  BATON_ASSIGN_OR_RETURN(const std::vector<eval::EvalCase> cases, eval::CasesFromFlags());
  BATON_ASSIGN_OR_RETURN(
      const auto writer,
      eval::ResultWriter::Open(absl::GetFlag(FLAGS_out), absl::GetFlag(FLAGS_resume)));
  BATON_ASSIGN_OR_RETURN(const auto connection, ConnectionFromFlags());
  const absl::Status status = RunCases(cases,
                                       {.model = absl::GetFlag(FLAGS_model),
                                        .kv_policy = absl::GetFlag(FLAGS_kv),
                                        .sessions = absl::GetFlag(FLAGS_sessions),
                                        .concurrency = absl::GetFlag(FLAGS_concurrency)},
                                       *connection,
                                       *writer);
  std::cout << eval::FormatTable(writer->rows());
  return status;
}

}  // namespace baton::client
