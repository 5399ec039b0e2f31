#include "services/lab/table/table_case.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

#include "common/base/pieces.h"
#include "common/base/status_macros.h"
#include "common/eval/eval_case.h"
#include "common/eval/result_row.h"
#include "common/kv/codec/encoded_kv.h"
#include "common/kv/codec/hidden/hidden_state.h"
#include "common/kv/codec/kv_format.h"
#include "common/kv/codec/kv_policy.h"
#include "common/kv/codec/policy_params.h"
#include "common/text/tokenizer.h"
#include "services/lab/baselines/make_baseline.h"
#include "services/lab/table/hidden_prompt.h"
#include "services/lab/table/observed_prefill_kv.h"
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
void SetDecodeCounts(const kv::EncodedKv* encoded, int64_t decode_steps, eval::ResultRow& row) {
  const kv::AttentionCounters counters =
      encoded == nullptr ? DenseCounters(row.prompt_tokens, decode_steps) : encoded->counters();
  if (counters.heads > 0) {
    row.attended_share = static_cast<double>(counters.attended_tokens) /
                         static_cast<double>(counters.heads) /
                         static_cast<double>(row.prompt_tokens);
  }
  if (const int64_t selected = counters.hits + counters.misses; selected > 0) {
    row.hit_share = static_cast<double>(counters.hits) / static_cast<double>(selected);
  }
  if (encoded != nullptr && encoded->CacheBytes() > 0) {
    row.kv_slot_bytes = encoded->CacheBytes();
  }
}

}  // namespace

TableCase::TableCase(const eval::EvalCase& eval_case,
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
      pages_(NewPages()) {}

WorkingPages TableCase::NewPages() const {
  return {setup_.dimensions, setup_.dtype, setup_.prompt_tokens, setup_.max_tokens};
}

WorkingPages& TableCase::pages(const Encoding& encoding) {
  return encoding.hidden == nullptr ? pages_ : encoding.hidden->pages();
}

int32_t TableCase::sent_layers(const Encoding& encoding) const {
  return encoding.hidden == nullptr ? setup_.dimensions.layers : model_.full_layers();
}

absl::Status TableCase::Prepare(const std::vector<kv::KvPolicy>& policies, TableFormats& formats) {
  BaselineFactory baselines(setup_);
  for (const kv::KvPolicy& policy : policies) {
    if (policy.baseline() != nullptr) {
      encodings_.push_back({.kv = baselines.Make(*policy.baseline()), .baseline = true});
      continue;
    }
    BATON_ASSIGN_OR_RETURN(Encoding encoding, PrepareFormat(*policy.format(), formats));
    encodings_.push_back(std::move(encoding));
  }
  return absl::OkStatus();
}

absl::StatusOr<TableCase::Encoding> TableCase::PrepareFormat(const kv::KvFormatPolicy& policy,
                                                             TableFormats& formats) {
  Encoding encoding;
  BATON_ASSIGN_OR_RETURN(encoding.kv,
                         formats.Make(policy, setup_.prompt_tokens, eval_case_.max_new_tokens));
  if (policy.hidden != kv::HiddenWire::kNone) {
    BATON_ASSIGN_OR_RETURN(encoding.hidden, HiddenPromptOf(policy, formats));
    BATON_ASSIGN_OR_RETURN(const kv::HiddenShape shape,
                           formats.HiddenShapeOf(policy, setup_.prompt_tokens));
    encoding.hidden_bytes = shape.bytes();
  }
  return encoding;
}

absl::StatusOr<HiddenPrompt*> TableCase::HiddenPromptOf(const kv::KvFormatPolicy& policy,
                                                        TableFormats& formats) {
  std::unique_ptr<HiddenPrompt>& hidden = hidden_prompts_[policy.hidden];
  if (hidden == nullptr) {
    const kv::KvFormatPolicy unscored = {.hidden = policy.hidden, .resident = kv::DensePolicy{}};
    BATON_ASSIGN_OR_RETURN(const kv::HiddenShape shape,
                           formats.HiddenShapeOf(unscored, setup_.prompt_tokens));
    BATON_ASSIGN_OR_RETURN(auto state, formats.MakeHidden(shape));
    hidden = std::make_unique<HiddenPrompt>(std::move(state), NewPages());
  }
  return hidden.get();
}

absl::Status TableCase::Prefill() {
  PrefillObservers observers;
  for (const Encoding& encoding : encodings_) {
    if (encoding.kv != nullptr) {
      observers.encodings.push_back({.kv = encoding.kv.get(), .layers = sent_layers(encoding)});
    }
  }
  for (const auto& [wire, hidden] : hidden_prompts_) {
    observers.hidden.push_back(&hidden->hidden());
  }
  const absl::Time start = absl::Now();
  BATON_ASSIGN_OR_RETURN(first_token_, model_.Prefill(prompt_, pages_, observers));
  for (Encoding& encoding : encodings_) {
    encoding.wire_bytes = WireBytes(encoding);
  }
  BATON_RETURN_IF_ERROR(ExpandHidden());
  prefill_time_ = absl::Now() - start;
  for (const auto& encoding : observers.encodings) {
    BATON_RETURN_IF_ERROR(encoding.kv->Settle());
    encoding.kv->Trim();
  }
  return absl::OkStatus();
}

int64_t TableCase::WireBytes(const Encoding& encoding) const {
  if (encoding.baseline) {
    return 0;
  }
  const int32_t layers = sent_layers(encoding);
  if (encoding.kv == nullptr) {
    return encoding.hidden_bytes + pages_.SentBytes(layers);
  }
  auto bytes = encoding.hidden_bytes + static_cast<int64_t>(encoding.kv->State().size());
  for (int32_t layer = 0; layer < layers; ++layer) {
    bytes += static_cast<int64_t>(BytesOf(encoding.kv->LayerPages(layer).memory));
  }
  return bytes;
}

absl::Status TableCase::ExpandHidden() {
  for (const auto& [wire, hidden] : hidden_prompts_) {
    BATON_RETURN_IF_ERROR(hidden->Expand(model_, pages_));
  }
  for (const Encoding& encoding : encodings_) {
    if (encoding.hidden == nullptr || encoding.kv == nullptr) {
      continue;
    }
    WorkingPages& expanded = encoding.hidden->pages();
    for (int32_t layer = model_.full_layers(); layer < setup_.dimensions.layers; ++layer) {
      BATON_RETURN_IF_ERROR(encoding.kv->EncodeLayer(
          {.pages = expanded.pages(), .table = expanded.prompt_table()}, layer));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<eval::ResultRow> TableCase::Answer(size_t index) {
  const Encoding encoding = std::move(encodings_[index]);
  const int64_t resident_bytes =
      encoding.kv == nullptr ? pages_.PromptBytes() : encoding.kv->ResidentBytes();
  std::vector<std::vector<int32_t>> tier_tokens = TierTokens(encoding.kv.get());
  const AnswerLimits limits = {.max_new_tokens = eval_case_.max_new_tokens,
                               .stop_token_ids = model_.config().eos_token_ids};
  const absl::Time start = absl::Now();
  BATON_ASSIGN_OR_RETURN(
      GreedyAnswer answer,
      model_.Decode(
          setup_.prompt_tokens, first_token_, limits, pages(encoding), encoding.kv.get()));
  const absl::Duration decode_time = absl::Now() - start;
  eval::ResultRow row = eval::AnsweredRow(
      eval_case_, tokenizer_.Decode(answer.token_ids, /*skip_special_tokens=*/true));
  row.token_ids = std::move(answer.token_ids);
  row.prompt_tokens = setup_.prompt_tokens;
  row.completion_tokens = answer.completion_tokens;
  row.kv_logical_bytes = kv::KvFormat::LogicalBytes(setup_.dimensions, setup_.prompt_tokens);
  row.kv_wire_bytes = encoding.wire_bytes;
  row.kv_resident_bytes = resident_bytes;
  row.tier_tokens = std::move(tier_tokens);
  row.ttft_ms = absl::ToDoubleMilliseconds(prefill_time_);
  row.total_ms = absl::ToDoubleMilliseconds(prefill_time_ + decode_time);
  SetDecodeCounts(encoding.kv.get(), answer.decode_steps, row);
  return row;
}

// By layer; empty for what has no tiers.
std::vector<std::vector<int32_t>> TableCase::TierTokens(const kv::EncodedKv* encoded) const {
  std::vector<std::vector<int32_t>> tokens;
  for (int32_t layer = 0; encoded != nullptr && layer < setup_.dimensions.layers; ++layer) {
    const std::span<const int32_t> counts = encoded->TierTokens(layer);
    if (!counts.empty()) {
      tokens.emplace_back(counts.begin(), counts.end());
    }
  }
  return tokens;
}

}  // namespace baton::lab
