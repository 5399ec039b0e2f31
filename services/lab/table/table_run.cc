#include "services/lab/table/table_run.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

#include "common/base/status_macros.h"
#include "common/eval/eval_case.h"
#include "common/eval/result_row.h"
#include "common/kv/codec/encoded_kv.h"
#include "common/kv/codec/kv_calibration.h"
#include "common/kv/codec/kv_format.h"
#include "common/kv/codec/kv_policy.h"
#include "common/text/load_tokenizer.h"
#include "common/text/tokenizer.h"
#include "services/lab/baselines/make_baseline.h"
#include "services/lab/eval/encode_case.h"
#include "services/lab/table/table_formats.h"
#include "services/lab/table/table_model.h"
#include "services/lab/table/working_pages.h"

namespace baton::lab {
namespace {

// What dense decode attends to: in step s (from 0) the prompt and s + 1 generated tokens.
kv::AttentionCounters DenseCounters(int64_t prompt_tokens, int64_t steps) {
  return {.heads = steps, .attended_tokens = steps * prompt_tokens + steps * (steps + 1) / 2};
}

// What decode left behind, into the row; `encoded` is null for dense.
void SetKvCounts(const kv::EncodedKv* encoded, int64_t decode_steps, eval::ResultRow& row) {
  const kv::AttentionCounters counters =
      encoded == nullptr ? DenseCounters(row.prompt_tokens, decode_steps) : encoded->counters();
  if (counters.heads > 0) {
    row.attended_share = static_cast<double>(counters.attended_tokens) /
                         static_cast<double>(counters.heads) /
                         static_cast<double>(row.prompt_tokens);
  }
  if (encoded != nullptr && encoded->CacheBytes() > 0) {
    row.kv_slot_bytes = encoded->CacheBytes();
  }
}

// One case while it runs.
class TableCase {
 public:
  TableCase(const eval::EvalCase& eval_case,
            const text::Tokenizer& tokenizer,
            std::vector<int32_t> prompt,
            TableModel& model)
      : eval_case_(eval_case),
        tokenizer_(tokenizer),
        prompt_(std::move(prompt)),
        model_(model),
        setup_{.ops = model.ops(),
               .exec = model.exec(),
               .dimensions = model.dimensions(),
               .dtype = model.dtype(),
               .prompt_tokens = static_cast<int64_t>(prompt_.size()),
               .max_tokens = static_cast<int64_t>(prompt_.size()) + eval_case.max_new_tokens},
        pages_(setup_.dimensions, setup_.dtype, setup_.prompt_tokens, setup_.max_tokens) {}

  absl::Status MakeEncodings(const std::vector<kv::KvPolicy>& policies, TableFormats& formats) {
    BaselineFactory baselines(setup_);
    for (const kv::KvPolicy& policy : policies) {
      if (policy.baseline() != nullptr) {
        encodings_.push_back(baselines.Make(*policy.baseline()));
        continue;
      }
      BATON_ASSIGN_OR_RETURN(
          auto encoded,
          formats.Make(*policy.format(), setup_.prompt_tokens, eval_case_.max_new_tokens));
      encodings_.push_back(std::move(encoded));
    }
    return absl::OkStatus();
  }

  absl::Status Prefill() {
    std::vector<kv::EncodedKv*> encoded;
    for (const auto& encoding : encodings_) {
      if (encoding != nullptr) {
        encoded.push_back(encoding.get());
      }
    }
    const absl::Time start = absl::Now();
    BATON_ASSIGN_OR_RETURN(first_token_, model_.Prefill(prompt_, pages_, encoded));
    prefill_time_ = absl::Now() - start;
    for (kv::EncodedKv* encoding : encoded) {
      encoding->Trim();
    }
    return absl::OkStatus();
  }

  // Decodes under policy `index`, whose encoding is used up by it.
  absl::StatusOr<eval::ResultRow> Answer(size_t index, const kv::KvPolicy& policy) {
    const std::unique_ptr<kv::EncodedKv> encoded = std::move(encodings_[index]);
    const int64_t resident_bytes =
        encoded == nullptr ? pages_.PromptBytes() : encoded->ResidentBytes();
    const AnswerLimits limits = {.max_new_tokens = eval_case_.max_new_tokens,
                                 .stop_token_ids = model_.config().eos_token_ids};
    const absl::Time start = absl::Now();
    BATON_ASSIGN_OR_RETURN(
        GreedyAnswer answer,
        model_.Decode(setup_.prompt_tokens, first_token_, limits, pages_, encoded.get()));
    const absl::Duration decode_time = absl::Now() - start;
    eval::ResultRow row = eval::AnsweredRow(
        eval_case_, tokenizer_.Decode(answer.token_ids, /*skip_special_tokens=*/true));
    row.token_ids = std::move(answer.token_ids);
    row.prompt_tokens = setup_.prompt_tokens;
    row.completion_tokens = answer.completion_tokens;
    row.kv_logical_bytes = kv::KvFormat::LogicalBytes(setup_.dimensions, setup_.prompt_tokens);
    row.kv_resident_bytes = resident_bytes;
    row.ttft_ms = absl::ToDoubleMilliseconds(prefill_time_);
    row.total_ms = absl::ToDoubleMilliseconds(prefill_time_ + decode_time);
    row.kv = NameInRows(policy, model_.calibration().get());
    SetKvCounts(encoded.get(), answer.decode_steps, row);
    return row;
  }

 private:
  const eval::EvalCase& eval_case_;
  const text::Tokenizer& tokenizer_;
  const std::vector<int32_t> prompt_;
  TableModel& model_;
  const BaselineSetup setup_;
  WorkingPages pages_;
  std::vector<std::unique_ptr<kv::EncodedKv>> encodings_;  // null: dense
  int32_t first_token_ = 0;
  absl::Duration prefill_time_;
};

}  // namespace

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
  BATON_RETURN_IF_ERROR(table_case.MakeEncodings(policies, formats));
  BATON_RETURN_IF_ERROR(table_case.Prefill());
  std::vector<eval::ResultRow> rows;
  for (size_t i = 0; i < policies.size(); ++i) {
    BATON_ASSIGN_OR_RETURN(eval::ResultRow row, table_case.Answer(i, policies[i]));
    rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace baton::lab
