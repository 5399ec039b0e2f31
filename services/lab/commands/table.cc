#include "services/lab/commands/table.h"

#include <algorithm>
#include <cstdint>
#include <iostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/declare.h"
#include "absl/flags/flag.h"

#include "common/base/status_macros.h"
#include "common/config/check_flag.h"
#include "common/eval/eval_case.h"
#include "common/eval/eval_flags.h"
#include "common/eval/policy_sums.h"
#include "common/eval/policy_table.h"
#include "common/eval/read_rows.h"
#include "common/eval/result_row.h"
#include "common/eval/result_writer.h"
#include "common/text/load_tokenizer.h"
#include "common/worker/worker_options.h"
#include "services/lab/commands/write_text.h"
#include "services/lab/flags.h"
#include "services/lab/plot/quality_svg.h"
#include "services/lab/table/table_cases.h"
#include "services/lab/table/table_run.h"

ABSL_FLAG(std::string, rows, "", "table: files of eval --out, separated by commas");

ABSL_FLAG(std::string,
          plot,
          "",
          "table, eval --table: SVG file for correct answers over bytes; empty = none");

ABSL_FLAG(
    int32_t,
    jobs,
    1,
    "eval --table, calibrate: cases at once. Each job holds the model and its share of --threads.");

ABSL_DECLARE_FLAG(std::string, kv);

namespace baton::lab {
namespace {

// Prints the table and draws the picture that --plot asks for.
absl::Status Report(const std::vector<eval::ResultRow>& rows) {
  std::cout << eval::FormatPolicyTable(rows);
  const std::string plot = absl::GetFlag(FLAGS_plot);
  if (plot.empty()) {
    return absl::OkStatus();
  }
  return WriteText(plot, QualitySvg("Quality of KV formats", PlotPoints(eval::Summarize(rows))));
}

}  // namespace

absl::StatusOr<TableModels> TableModelsFromFlags(worker::WorkerOptions options) {
  const int32_t jobs = absl::GetFlag(FLAGS_jobs);
  BATON_RETURN_IF_ERROR(config::CheckFlagRange("jobs", jobs, 1, 1024));
  options.threads = std::max(options.threads / jobs, 1);
  return CreateTableModels(options, jobs);
}

absl::Status RunTable() {
  const std::string paths = absl::GetFlag(FLAGS_rows);
  BATON_RETURN_IF_ERROR(config::CheckFlagSet("rows", paths));
  BATON_ASSIGN_OR_RETURN(const std::vector<eval::ResultRow> rows, eval::ReadRows(paths));
  return Report(rows);
}

absl::Status RunEvalTable(const std::vector<eval::EvalCase>& cases, worker::WorkerOptions options) {
  const int64_t pool_bytes = options.engine.kv_pool_bytes;
  BATON_ASSIGN_OR_RETURN(const auto tokenizer, text::LoadTokenizer(options.model_dir));
  BATON_ASSIGN_OR_RETURN(const auto models, TableModelsFromFlags(std::move(options)));
  BATON_ASSIGN_OR_RETURN(
      const auto policies,
      ParsePolicies(absl::GetFlag(FLAGS_kv), models.front()->calibration().get()));
  BATON_ASSIGN_OR_RETURN(
      const auto writer,
      eval::ResultWriter::Open(absl::GetFlag(FLAGS_out), absl::GetFlag(FLAGS_resume)));
  absl::Status status = RunTableCases(cases, policies, tokenizer, pool_bytes, models, *writer);
  status.Update(Report(writer->rows()));
  return status;
}

}  // namespace baton::lab
