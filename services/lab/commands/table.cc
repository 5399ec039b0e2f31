#include "services/lab/commands/table.h"

#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/declare.h"
#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"

#include "common/base/status_context.h"
#include "common/base/status_macros.h"
#include "common/config/check_flag.h"
#include "common/eval/eval_case.h"
#include "common/eval/eval_flags.h"
#include "common/eval/policy_table.h"
#include "common/eval/progress_bar.h"
#include "common/eval/read_rows.h"
#include "common/eval/result_row.h"
#include "common/eval/result_writer.h"
#include "common/kv/codec/kv_policy.h"
#include "common/text/load_tokenizer.h"
#include "common/worker/worker_options.h"
#include "services/lab/flags.h"
#include "services/lab/table/table_formats.h"
#include "services/lab/table/table_model.h"
#include "services/lab/table/table_run.h"

ABSL_FLAG(std::string, rows, "", "table: files of eval --out, separated by commas");

ABSL_DECLARE_FLAG(std::string, kv);

namespace baton::lab {
namespace {

// The policies that have no row yet.
std::vector<kv::KvPolicy> Missing(const std::vector<kv::KvPolicy>& policies,
                                  const std::string& case_id,
                                  const eval::ResultWriter& writer) {
  std::vector<kv::KvPolicy> missing;
  for (const kv::KvPolicy& policy : policies) {
    if (!writer.Finished(case_id, policy.CanonicalString())) {
      missing.push_back(policy);
    }
  }
  return missing;
}

absl::Status RunCases(const std::vector<eval::EvalCase>& cases,
                      const std::vector<kv::KvPolicy>& policies,
                      worker::WorkerOptions options,
                      eval::ResultWriter& writer) {
  const int64_t pool_bytes = options.engine.kv_pool_bytes;
  BATON_ASSIGN_OR_RETURN(const auto tokenizer, text::LoadTokenizer(options.model_dir));
  BATON_ASSIGN_OR_RETURN(const auto model, TableModel::Create(std::move(options)));
  BATON_ASSIGN_OR_RETURN(const auto formats, TableFormats::Create(*model, policies, pool_bytes));
  eval::ProgressBar bar(static_cast<int64_t>(cases.size() * policies.size()));
  for (const eval::EvalCase& eval_case : cases) {
    const std::vector<kv::KvPolicy> missing = Missing(policies, eval_case.id, writer);
    if (missing.empty()) {
      continue;
    }
    const auto rows = RunTableCase(eval_case, tokenizer, missing, *formats, *model);
    BATON_RETURN_IF_ERROR(WithContext(rows.status(), absl::StrCat("case ", eval_case.id)));
    for (const eval::ResultRow& row : *rows) {
      BATON_RETURN_IF_ERROR(writer.Append(row));
      bar.Advance(row.correct);
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status RunTable() {
  const std::string paths = absl::GetFlag(FLAGS_rows);
  BATON_RETURN_IF_ERROR(config::CheckFlagSet("rows", paths));
  BATON_ASSIGN_OR_RETURN(const std::vector<eval::ResultRow> rows, eval::ReadRows(paths));
  std::cout << eval::FormatPolicyTable(rows);
  return absl::OkStatus();
}

absl::Status RunEvalTable(const std::vector<eval::EvalCase>& cases, worker::WorkerOptions options) {
  BATON_ASSIGN_OR_RETURN(const auto policies, ParsePolicies(absl::GetFlag(FLAGS_kv)));
  BATON_ASSIGN_OR_RETURN(
      const auto writer,
      eval::ResultWriter::Open(absl::GetFlag(FLAGS_out), absl::GetFlag(FLAGS_resume)));
  const absl::Status status = RunCases(cases, policies, std::move(options), *writer);
  std::cout << eval::FormatPolicyTable(writer->rows());
  return status;
}

}  // namespace baton::lab
