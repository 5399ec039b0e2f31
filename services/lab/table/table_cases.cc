#include "services/lab/table/table_cases.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

#include "common/base/status_context.h"
#include "common/base/status_macros.h"
#include "common/eval/eval_case.h"
#include "common/eval/progress_bar.h"
#include "common/eval/result_row.h"
#include "common/eval/result_writer.h"
#include "common/kv/codec/kv_policy.h"
#include "common/text/load_tokenizer.h"
#include "common/worker/worker_options.h"
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

// Hands the cases to threads, longest first, so that no long one is left for the end.
class CaseQueue {
 public:
  explicit CaseQueue(std::span<const eval::EvalCase> cases) {
    cases_.reserve(cases.size());
    for (const eval::EvalCase& eval_case : cases) {
      cases_.push_back(&eval_case);
    }
    std::ranges::sort(cases_, [](const eval::EvalCase* a, const eval::EvalCase* b) {
      return a->length_bucket != b->length_bucket ? a->length_bucket > b->length_bucket : a < b;
    });
  }

  // Null when there is none left, or after a failure.
  const eval::EvalCase* Next() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return status_.ok() && next_ < cases_.size() ? cases_[next_++] : nullptr;
  }
  // Keeps the first failure.
  void Fail(const absl::Status& status) {
    const std::lock_guard<std::mutex> lock(mutex_);
    status_.Update(status);
  }
  absl::Status status() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return status_;
  }

 private:
  std::vector<const eval::EvalCase*> cases_;
  mutable std::mutex mutex_;  // guards everything below
  size_t next_ = 0;
  absl::Status status_;
};

// What every thread works on.
struct TableJob {
  CaseQueue& queue;
  const std::vector<kv::KvPolicy>& policies;
  const text::ModelTokenizer& tokenizer;
  const int64_t pool_bytes;
  eval::ResultWriter& writer;
  eval::ProgressBar& bar;
};

absl::Status RunCase(const eval::EvalCase& eval_case,
                     const TableJob& job,
                     TableFormats& formats,
                     TableModel& model) {
  const std::vector<kv::KvPolicy> missing = Missing(job.policies, eval_case.id, model, job.writer);
  if (missing.empty()) {
    return absl::OkStatus();
  }
  const auto rows = RunTableCase(eval_case, job.tokenizer, missing, formats, model);
  BATON_RETURN_IF_ERROR(WithContext(rows.status(), absl::StrCat("case ", eval_case.id)));
  for (const eval::ResultRow& row : *rows) {
    BATON_RETURN_IF_ERROR(job.writer.Append(row));
    job.bar.Advance(row.correct);
  }
  return absl::OkStatus();
}

absl::Status RunQueue(const TableJob& job, TableModel& model) {
  BATON_ASSIGN_OR_RETURN(const auto formats,
                         TableFormats::Create(model, job.policies, job.pool_bytes));
  while (const eval::EvalCase* eval_case = job.queue.Next()) {
    BATON_RETURN_IF_ERROR(RunCase(*eval_case, job, *formats, model));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<TableModels> CreateTableModels(const worker::WorkerOptions& options, int32_t jobs) {
  TableModels models;
  for (int32_t i = 0; i < std::max(jobs, 1); ++i) {
    BATON_ASSIGN_OR_RETURN(auto model, TableModel::Create(options));
    models.push_back(std::move(model));
  }
  return models;
}

absl::Status RunTableCases(std::span<const eval::EvalCase> cases,
                           const std::vector<kv::KvPolicy>& policies,
                           const text::ModelTokenizer& tokenizer,
                           int64_t pool_bytes,
                           const TableModels& models,
                           eval::ResultWriter& writer) {
  CaseQueue queue(cases);
  eval::ProgressBar bar(static_cast<int64_t>(cases.size() * policies.size()));
  const TableJob job = {.queue = queue,
                        .policies = policies,
                        .tokenizer = tokenizer,
                        .pool_bytes = pool_bytes,
                        .writer = writer,
                        .bar = bar};
  {
    std::vector<std::jthread> threads;
    for (const auto& model : models) {
      threads.emplace_back([&job, &model] { job.queue.Fail(RunQueue(job, *model)); });
    }
  }
  return queue.status();
}

}  // namespace baton::lab
