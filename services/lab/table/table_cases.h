// Many cases under a list of KV policies.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "common/eval/eval_case.h"
#include "common/eval/result_writer.h"
#include "common/kv/codec/kv_policy.h"
#include "common/text/load_tokenizer.h"
#include "common/worker/worker_options.h"
#include "services/lab/table/table_model.h"

namespace baton::lab {

// Every model runs a case at a time.
using TableModels = std::vector<std::unique_ptr<TableModel>>;

// Loads the model `jobs` times, at least once.
absl::StatusOr<TableModels> CreateTableModels(const worker::WorkerOptions& options, int32_t jobs);

// Runs every case under the policies that `writer` has no row of yet, and writes those; the longest
// cases first, as many at once as there are `models`. Each format gets `pool_bytes` of memory in
// each of them. The first error, which names the case, ends the run after the cases that are under
// way; their rows are written.
absl::Status RunTableCases(std::span<const eval::EvalCase> cases,
                           const std::vector<kv::KvPolicy>& policies,
                           const text::ModelTokenizer& tokenizer,
                           int64_t pool_bytes,
                           const TableModels& models,
                           eval::ResultWriter& writer);

}  // namespace baton::lab
