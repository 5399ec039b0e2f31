#include "services/lab/commands/eval.h"

#include <algorithm>
#include <cstdint>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/time/time.h"

#include "common/base/status_macros.h"
#include "common/config/check_flag.h"
#include "common/engine/request.h"
#include "common/eval/conversation.h"
#include "common/eval/eval_case.h"
#include "common/eval/eval_flags.h"
#include "common/eval/progress_bar.h"
#include "common/eval/result_row.h"
#include "common/eval/result_table.h"
#include "common/eval/result_writer.h"
#include "common/text/load_tokenizer.h"
#include "common/text/tokenizer.h"
#include "common/worker/worker_options.h"
#include "services/lab/commands/table.h"
#include "services/lab/eval/encode_case.h"
#include "services/lab/eval/generator.h"
#include "services/lab/flags.h"

ABSL_FLAG(std::string, kv, "dense", "eval: KV policy; with --table several, separated by ';'.");
ABSL_FLAG(bool, table, false, "eval: compares the KV policies on one prefill per case.");
ABSL_FLAG(std::string, role, "both", "eval: both: one engine; split: prefill and decode engines.");
ABSL_FLAG(int32_t, prefill_chunk_tokens, 2048, "eval: prompt tokens of one step.");
ABSL_FLAG(int64_t, kv_pool_mib, 1024, "eval: KV pool of each engine and format, MiB.");

namespace baton::lab {
namespace {

absl::StatusOr<engine::GenerateRequest> MakeRequest(const eval::EvalCase& eval_case,
                                                    const text::ModelTokenizer& tokenizer,
                                                    const std::vector<int32_t>& stop_token_ids) {
  engine::GenerateRequest request;
  BATON_ASSIGN_OR_RETURN(request.prompt, EncodeCase(eval_case, tokenizer));
  request.request_id = eval_case.id;
  request.kv_policy = absl::GetFlag(FLAGS_kv);
  if (absl::GetFlag(FLAGS_sessions)) {
    request.session_id = eval::ConversationId(eval_case.id);
  }
  request.sampling.temperature = 0.0f;
  request.sampling.max_tokens = eval_case.max_new_tokens;
  request.sampling.stop_token_ids = stop_token_ids;
  return request;
}

eval::ResultRow MakeRow(const eval::EvalCase& eval_case,
                        const GeneratedAnswer& answer,
                        const text::Tokenizer& tokenizer) {
  eval::ResultRow row = eval::AnsweredRow(
      eval_case, tokenizer.Decode(answer.token_ids, /*skip_special_tokens=*/true));
  row.token_ids = answer.token_ids;
  row.kv = answer.stats.kv_policy;
  row.prompt_tokens = answer.stats.prompt_tokens;
  row.cached_tokens = answer.stats.cached_tokens;
  row.completion_tokens = answer.stats.completion_tokens;
  row.kv_logical_bytes = answer.stats.kv_logical_bytes;
  row.kv_wire_bytes = answer.stats.kv_wire_bytes;
  row.kv_resident_bytes = answer.stats.kv_resident_bytes;
  row.ttft_ms = absl::ToDoubleMilliseconds(answer.time_to_first_token);
  row.total_ms = absl::ToDoubleMilliseconds(answer.total_time);
  return row;
}

absl::StatusOr<std::unique_ptr<Generator>> MakeGenerator(worker::WorkerOptions options) {
  return absl::GetFlag(FLAGS_role) == "split" ? MakeSplitGenerator(std::move(options))
                                              : MakeLocalGenerator(std::move(options));
}

absl::Status RunCases(const std::vector<eval::EvalCase>& cases,
                      worker::WorkerOptions options,
                      eval::ResultWriter& writer) {
  BATON_ASSIGN_OR_RETURN(const auto tokenizer, text::LoadTokenizer(absl::GetFlag(FLAGS_model)));
  BATON_ASSIGN_OR_RETURN(const auto checkpoint, OpenCheckpoint());
  BATON_ASSIGN_OR_RETURN(const std::unique_ptr<Generator> generator,
                         MakeGenerator(std::move(options)));
  eval::ProgressBar bar(static_cast<int64_t>(cases.size()));
  const auto answer = [&](const eval::EvalCase& turn) -> absl::StatusOr<eval::ResultRow> {
    BATON_ASSIGN_OR_RETURN(auto request,
                           MakeRequest(turn, tokenizer, checkpoint->config().eos_token_ids));
    BATON_ASSIGN_OR_RETURN(const GeneratedAnswer generated,
                           generator->Generate(std::move(request)));
    return MakeRow(turn, generated, *tokenizer.tokenizer);
  };
  for (const eval::EvalCase& eval_case : cases) {
    if (!eval::FinishedTurns(eval_case, writer)) {
      BATON_ASSIGN_OR_RETURN(const bool correct, eval::RunTurns(eval_case, answer, writer));
      bar.Advance(correct);
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<worker::WorkerOptions> EvalOptionsFromFlags() {
  BATON_RETURN_IF_ERROR(config::CheckFlagRange(
      "prefill-chunk-tokens", absl::GetFlag(FLAGS_prefill_chunk_tokens), 1, 1 << 16));
  BATON_RETURN_IF_ERROR(
      config::CheckFlagRange("kv-pool-mib", absl::GetFlag(FLAGS_kv_pool_mib), 1, 1 << 20));
  worker::WorkerOptions options;
  options.model_dir = absl::GetFlag(FLAGS_model);
  options.device = absl::GetFlag(FLAGS_device);
  options.random_weights = absl::GetFlag(FLAGS_random_weights);
  options.seed = absl::GetFlag(FLAGS_seed);
  options.kv_calibration = absl::GetFlag(FLAGS_kv_calibration);
  options.engine.prefill_chunk_tokens = absl::GetFlag(FLAGS_prefill_chunk_tokens);
  options.engine.step_token_budget =
      std::max(options.engine.step_token_budget, options.engine.prefill_chunk_tokens);
  options.engine.kv_pool_bytes = absl::GetFlag(FLAGS_kv_pool_mib) << 20;
  options.engine.codec_pools = {.fp8_bytes = options.engine.kv_pool_bytes,
                                .diffkv_bytes = options.engine.kv_pool_bytes,
                                .shadowkv_bytes = options.engine.kv_pool_bytes,
                                .hidden_bytes = options.engine.kv_pool_bytes};
  BATON_ASSIGN_OR_RETURN(options.compute, ComputeDType());
  BATON_ASSIGN_OR_RETURN(options.threads, ComputeThreads());
  return options;
}

absl::Status RunEval() {
  BATON_RETURN_IF_ERROR(config::CheckFlagSet("out", absl::GetFlag(FLAGS_out)));
  BATON_RETURN_IF_ERROR(
      config::CheckFlagChoice("role", absl::GetFlag(FLAGS_role), {"both", "split"}));
  BATON_ASSIGN_OR_RETURN(const std::vector<eval::EvalCase> cases, eval::CasesFromFlags());
  BATON_ASSIGN_OR_RETURN(worker::WorkerOptions options, EvalOptionsFromFlags());
  if (absl::GetFlag(FLAGS_table)) {
    return RunEvalTable(cases, std::move(options));
  }
  BATON_ASSIGN_OR_RETURN(
      const auto writer,
      eval::ResultWriter::Open(absl::GetFlag(FLAGS_out), absl::GetFlag(FLAGS_resume)));
  const absl::Status status = RunCases(cases, std::move(options), *writer);
  std::cout << eval::FormatTable(writer->rows());
  return status;
}

}  // namespace baton::lab
