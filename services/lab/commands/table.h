// baton-lab table, and eval --table: KV policies side by side.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "common/eval/eval_case.h"
#include "common/worker/worker_options.h"
#include "services/lab/table/table_cases.h"

namespace baton::lab {

// `baton-lab table`: the table of finished row files (--rows).
absl::Status RunTable();

// `baton-lab eval --table`: runs `cases` under every policy of --kv, writes --out, prints the
// table.
absl::Status RunEvalTable(const std::vector<eval::EvalCase>& cases, worker::WorkerOptions options);

// As many models as --jobs says, which share the threads of `options`.
absl::StatusOr<TableModels> TableModelsFromFlags(worker::WorkerOptions options);

}  // namespace baton::lab
