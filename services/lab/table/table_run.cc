#include "services/lab/table/table_run.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

#include "common/base/status_macros.h"
#include "common/eval/eval_case.h"
#include "common/eval/result_row.h"
#include "common/kv/codec/kv_calibration.h"
#include "common/kv/codec/kv_policy.h"
#include "common/text/load_tokenizer.h"
#include "services/lab/eval/encode_case.h"
#include "services/lab/table/table_case.h"
#include "services/lab/table/table_formats.h"
#include "services/lab/table/table_model.h"

namespace baton::lab {

std::string NameInRows(const kv::KvPolicy& policy, const kv::KvCalibration* calibration) {
  return policy.CanonicalString(calibration == nullptr ? kv::KvSpelling::kShort
                                                       : kv::KvSpelling::kExplicit);
}

absl::StatusOr<std::vector<kv::KvPolicy>> ParsePolicies(std::string_view list,
                                                        const kv::KvCalibration* calibration) {
  const kv::KvPolicyDefaults defaults =
      calibration == nullptr ? kv::KvPolicyDefaults() : calibration->defaults;
  std::vector<kv::KvPolicy> policies;
  while (!list.empty()) {
    const size_t end = std::min(list.find(';'), list.size());
    BATON_ASSIGN_OR_RETURN(const kv::KvPolicy policy,
                           kv::ParseKvPolicy(list.substr(0, end), defaults));
    if (policy.choice().has_value()) {
      return absl::InvalidArgumentError(
          absl::StrCat("--kv: ", policy.CanonicalString(), " is a server's choice, not a format"));
    }
    if (std::ranges::count(policies, policy) > 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("--kv: ", policy.CanonicalString(), " occurs twice"));
    }
    policies.push_back(policy);
    list.remove_prefix(std::min(end + 1, list.size()));
  }
  if (policies.empty()) {
    return absl::InvalidArgumentError("--kv: a table needs at least one policy");
  }
  return policies;
}

absl::StatusOr<std::vector<eval::ResultRow>> RunTableCase(const eval::EvalCase& eval_case,
                                                          const text::ModelTokenizer& tokenizer,
                                                          const std::vector<kv::KvPolicy>& policies,
                                                          TableFormats& formats,
                                                          TableModel& model) {
  BATON_ASSIGN_OR_RETURN(std::vector<int32_t> prompt, EncodeCase(eval_case, tokenizer));
  TableCase table_case(eval_case, *tokenizer.tokenizer, std::move(prompt), model);
  BATON_RETURN_IF_ERROR(table_case.Prepare(policies, formats));
  BATON_RETURN_IF_ERROR(table_case.Prefill());
  std::vector<eval::ResultRow> rows;
  for (size_t i = 0; i < policies.size(); ++i) {
    BATON_ASSIGN_OR_RETURN(eval::ResultRow row, table_case.Answer(i));
    row.kv = NameInRows(policies[i], model.calibration().get());
    rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace baton::lab
