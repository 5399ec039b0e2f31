// Many cases under a list of KV policies.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"

#include "common/eval/eval_case.h"
#include "common/eval/result_writer.h"
#include "common/kv/codec/kv_policy.h"
#include "common/text/load_tokenizer.h"
#include "services/lab/table/table_model.h"

namespace baton::lab {

// Runs every case under the policies that `writer` has no row of yet, and writes those. Each format
// gets `pool_bytes` of memory. Errors name the case.
absl::Status RunTableCases(const std::vector<eval::EvalCase>& cases,
                           const std::vector<kv::KvPolicy>& policies,
                           const text::ModelTokenizer& tokenizer,
                           int64_t pool_bytes,
                           TableModel& model,
                           eval::ResultWriter& writer);

}  // namespace baton::lab
