// Evaluation cases under a list of KV policies.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "common/eval/eval_case.h"
#include "common/eval/result_row.h"
#include "common/kv/codec/kv_calibration.h"
#include "common/kv/codec/kv_policy.h"
#include "common/text/load_tokenizer.h"
#include "services/lab/table/table_formats.h"
#include "services/lab/table/table_model.h"

namespace baton::lab {

// The policies of "a;b;...", keys that they leave out as `calibration` has them (null: none).
// kInvalidArgument for one that the grammar doesn't have, that leaves
// the format to a server (auto, tier=...), or that comes twice.
absl::StatusOr<std::vector<kv::KvPolicy>> ParsePolicies(
    std::string_view list, const kv::KvCalibration* calibration = nullptr);

// The policy in rows: with a calibration every key is spelled.
std::string NameInRows(const kv::KvPolicy& policy, const kv::KvCalibration* calibration);

// Runs one case under `policies`: one prefill for all, then one answer each. Rows are in the order
// of the policies; ttft_ms is the time of the prefill with all encoding, total_ms that and the time
// of the policy's decode. A policy that leaves this prompt dense has a row like dense.
absl::StatusOr<std::vector<eval::ResultRow>> RunTableCase(const eval::EvalCase& eval_case,
                                                          const text::ModelTokenizer& tokenizer,
                                                          const std::vector<kv::KvPolicy>& policies,
                                                          TableFormats& formats,
                                                          TableModel& model);

}  // namespace baton::lab
