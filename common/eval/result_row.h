// What an evaluation run reports of one case.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

#include "common/eval/eval_case.h"

namespace baton::eval {

// One line of a result file.
struct ResultRow {
  std::string id;
  std::string task;
  int32_t length_bucket = 0;
  std::string output;              // text before the stop token
  std::vector<int32_t> token_ids;  // the stop token left out
  bool correct = false;
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;  // of the prompt, whose KV was kept from the turn before
  int64_t completion_tokens = 0;
  int64_t kv_logical_bytes = 0;  // prompt_tokens x KV layers x 2 x kv_heads x head_dim x 2
  // Payload, segment headers and manifest, or, in a table, what would be the payload; 0 for what is
  // never handed over.
  int64_t kv_wire_bytes = 0;
  int64_t kv_resident_bytes = 0;  // whole pages held after commit
  double ttft_ms = 0.0;
  double total_ms = 0.0;
  // The KV policy that answered; rows without one are of dense KV.
  std::string kv = "dense";
  // Attended tokens / prompt_tokens, mean over the layers, KV heads and steps of decode; unset
  // where nobody counted.
  std::optional<double> attended_share;
  // Selected chunks that the step before had selected too, as a share of all; unset where nobody
  // selects.
  std::optional<double> hit_share;
  // Device memory that selected tokens are copied to, beyond kv_resident_bytes; unset without one.
  std::optional<int64_t> kv_slot_bytes;
  // Prompt tokens by precision once the prompt is encoded, [layers][kv_heads x (high, low)]; empty
  // for formats of one precision.
  std::vector<std::vector<int32_t>> tier_tokens;

  bool operator==(const ResultRow&) const = default;
};

// The row of a case that was answered with `output`; tokens, bytes, times and policy are left to
// the caller.
ResultRow AnsweredRow(const EvalCase& eval_case, std::string output);

// The row as one JSON object without a line break. Bytes that are not UTF-8 become U+FFFD.
std::string ToJsonLine(const ResultRow& row);

// Reads back what ToJsonLine wrote; `kv` and what follows it may be missing. kInvalidArgument names
// the field that is wrong.
absl::StatusOr<ResultRow> ParseResultRow(std::string_view line);

}  // namespace baton::eval
