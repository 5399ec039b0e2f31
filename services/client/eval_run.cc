#include "services/client/eval_run.h"

#include <algorithm>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"

#include "common/base/status_macros.h"
#include "common/eval/conversation.h"
#include "common/eval/eval_case.h"
#include "common/eval/progress_bar.h"
#include "common/eval/result_row.h"
#include "common/eval/result_writer.h"
#include "common/rpc/status_details.h"
#include "services/client/case_request.h"
#include "services/client/connection.h"
#include "services/client/generation.h"

namespace baton::client {
namespace {

constexpr int kMaxTries = 20;
constexpr absl::Duration kMaxRetryDelay = absl::Seconds(10);

eval::ResultRow MakeRow(const eval::EvalCase& eval_case, const Generation& generation) {
  const inference::v1::Usage& usage = generation.usage;
  const Generation::Sequence answer =
      generation.sequences.empty() ? Generation::Sequence() : generation.sequences.front();
  eval::ResultRow row = eval::AnsweredRow(eval_case, answer.text);
  row.token_ids.assign(answer.token_ids.begin(), answer.token_ids.end());
  if (!generation.started.kv_policy().empty()) {
    row.kv = generation.started.kv_policy();
  }
  row.prompt_tokens = usage.prompt_tokens();
  row.cached_tokens = usage.cached_tokens();
  row.completion_tokens = usage.completion_tokens();
  row.kv_logical_bytes = static_cast<int64_t>(usage.kv_logical_bytes());
  row.kv_wire_bytes = static_cast<int64_t>(usage.kv_wire_bytes());
  row.kv_resident_bytes = static_cast<int64_t>(usage.kv_resident_bytes());
  row.ttft_ms = absl::ToDoubleMilliseconds(generation.time_to_first_token);
  row.total_ms = absl::ToDoubleMilliseconds(generation.total_time);
  return row;
}

// Sends a case, again where the router says when.
absl::StatusOr<Generation> Ask(const eval::EvalCase& eval_case,
                               const EvalOptions& options,
                               Connection& connection) {
  inference::v1::GenerateRequest request;
  request.set_model(options.model);
  request.set_kv_policy(options.kv_policy);
  if (options.sessions) {
    request.set_session_id(std::string(eval::ConversationId(eval_case.id)));
  }
  SetCase(eval_case, &request);
  for (int tries = 1;; ++tries) {
    absl::StatusOr<Generation> generation = Generate(connection, request, nullptr);
    const auto delay = rpc::RetryAfter(generation.status());
    if (generation.ok() || !delay.has_value() || tries == kMaxTries) {
      return generation;
    }
    absl::SleepFor(std::min(*delay, kMaxRetryDelay));
  }
}

// State shared by the threads of a run.
class Run {
 public:
  Run(const std::vector<eval::EvalCase>& cases,
      const EvalOptions& options,
      Connection& connection,
      eval::ResultWriter& writer)
      : options_(options), connection_(connection), writer_(writer), bar_(Count(cases, writer)) {
    for (const eval::EvalCase& eval_case : cases) {
      if (!eval::FinishedTurns(eval_case, writer)) {
        waiting_.push_back(&eval_case);
      }
    }
  }

  void Work() {
    while (const eval::EvalCase* eval_case = Next()) {
      const absl::Status status = RunOne(*eval_case);
      if (!status.ok()) {
        absl::MutexLock lock(&mutex_);
        first_error_.Update(status);
        return;
      }
    }
  }

  absl::Status first_error() const {
    absl::MutexLock lock(&mutex_);
    return first_error_;
  }

 private:
  static int64_t Count(const std::vector<eval::EvalCase>& cases, const eval::ResultWriter& writer) {
    return std::ranges::count_if(cases, [&](const eval::EvalCase& eval_case) {
      return !eval::FinishedTurns(eval_case, writer);
    });
  }

  const eval::EvalCase* Next() {
    absl::MutexLock lock(&mutex_);
    return next_ < waiting_.size() && first_error_.ok() ? waiting_[next_++] : nullptr;
  }

  absl::Status RunOne(const eval::EvalCase& eval_case) {
    const auto answer = [this](const eval::EvalCase& turn) -> absl::StatusOr<eval::ResultRow> {
      BATON_ASSIGN_OR_RETURN(const Generation generation, Ask(turn, options_, connection_));
      return MakeRow(turn, generation);
    };
    BATON_ASSIGN_OR_RETURN(const bool correct, eval::RunTurns(eval_case, answer, writer_));
    bar_.Advance(correct);
    return absl::OkStatus();
  }

  const EvalOptions& options_;
  Connection& connection_;
  eval::ResultWriter& writer_;
  eval::ProgressBar bar_;
  mutable absl::Mutex mutex_;
  std::vector<const eval::EvalCase*> waiting_;
  size_t next_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status first_error_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

absl::Status RunCases(const std::vector<eval::EvalCase>& cases,
                      const EvalOptions& options,
                      Connection& connection,
                      eval::ResultWriter& writer) {
  Run run(cases, options, connection, writer);
  std::vector<std::thread> threads;
  for (int i = 0; i < options.concurrency; ++i) {
    threads.emplace_back([&run] { run.Work(); });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  return run.first_error();
}

}  // namespace baton::client
