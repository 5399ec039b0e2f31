#include "services/lab/table/table_cases.h"

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

#include "common/base/status_context.h"
#include "common/base/status_macros.h"
#include "common/eval/eval_case.h"
#include "common/eval/progress_bar.h"
#include "common/eval/result_row.h"
#include "common/eval/result_writer.h"
#include "common/kv/codec/kv_policy.h"
#include "common/text/load_tokenizer.h"
#include "services/lab/table/table_formats.h"
#include "services/lab/table/table_model.h"
#include "services/lab/table/table_run.h"

namespace baton::lab {
namespace {

// The policies that have no row yet.
std::vector<kv::KvPolicy> Missing(const std::vector<kv::KvPolicy>& policies,
                                  const std::string& case_id,
                                  const TableModel& model,
                                  const eval::ResultWriter& writer) {
  std::vector<kv::KvPolicy> missing;
  for (const kv::KvPolicy& policy : policies) {
    if (!writer.Finished(case_id, NameInRows(policy, model.calibration().get()))) {
      missing.push_back(policy);
    }
  }
  return missing;
}

}  // namespace

absl::Status RunTableCases(const std::vector<eval::EvalCase>& cases,
                           const std::vector<kv::KvPolicy>& policies,
                           const text::ModelTokenizer& tokenizer,
                           int64_t pool_bytes,
                           TableModel& model,
                           eval::ResultWriter& writer) {
  BATON_ASSIGN_OR_RETURN(const auto formats, TableFormats::Create(model, policies, pool_bytes));
  eval::ProgressBar bar(static_cast<int64_t>(cases.size() * policies.size()));
  for (const eval::EvalCase& eval_case : cases) {
    const std::vector<kv::KvPolicy> missing = Missing(policies, eval_case.id, model, writer);
    if (missing.empty()) {
      continue;
    }
    const auto rows = RunTableCase(eval_case, tokenizer, missing, *formats, model);
    BATON_RETURN_IF_ERROR(WithContext(rows.status(), absl::StrCat("case ", eval_case.id)));
    for (const eval::ResultRow& row : *rows) {
      BATON_RETURN_IF_ERROR(writer.Append(row));
      bar.Advance(row.correct);
    }
  }
  return absl::OkStatus();
}

}  // namespace baton::lab
