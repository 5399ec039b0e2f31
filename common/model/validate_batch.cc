#include "common/model/validate_batch.h"

#include <algorithm>
#include <functional>

#include "absl/strings/str_cat.h"

#include "common/base/status_macros.h"

namespace baton::model {
namespace {

absl::Status Invalid(const std::string& message) {
  return absl::InvalidArgumentError("forward batch: " + message);
}

absl::Status CheckTokens(const ForwardBatch& batch,
                         const checkpoint::ModelConfig& config,
                         int32_t max_step_rows) {
  if (batch.token_ids.size() > static_cast<size_t>(max_step_rows)) {
    return Invalid(
        absl::StrCat(batch.token_ids.size(), " rows exceed max_step_rows ", max_step_rows));
  }
  if (batch.positions.size() != batch.token_ids.size()) {
    return Invalid("positions and token_ids differ in size");
  }
  for (const int32_t id : batch.token_ids) {
    if (id < 0 || id >= config.vocab_size) {
      return Invalid(
          absl::StrCat("token id ", id, " is outside the vocabulary of ", config.vocab_size));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckSequences(const ForwardBatch& batch) {
  int64_t next_row = 0;
  const auto rows = static_cast<int64_t>(batch.token_ids.size());
  for (const SequenceSlice& sequence : batch.sequences) {
    if (sequence.row_begin != next_row || sequence.row_count < 0 ||
        sequence.row_count > rows - next_row) {
      return Invalid("sequences must cover the rows one after another");
    }
    const auto first = batch.positions.begin() + sequence.row_begin;
    const auto last = first + sequence.row_count;
    if (std::adjacent_find(first, last, std::greater_equal<>()) != last ||
        (first != last && *first < 0)) {
      return Invalid("positions of a sequence must be >= 0 and ascend");
    }
    next_row += sequence.row_count;
  }
  return next_row == rows ? absl::OkStatus() : Invalid("rows without a sequence");
}

absl::Status CheckRowList(std::span<const int32_t> list, size_t rows, const char* name) {
  const bool ascending =
      std::adjacent_find(list.begin(), list.end(), std::greater_equal<>()) == list.end();
  if (!ascending ||
      (!list.empty() && (list.front() < 0 || static_cast<size_t>(list.back()) >= rows))) {
    return Invalid(absl::StrCat(name, " must ascend and lie within the ", rows, " rows"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ValidateBatch(const ForwardBatch& batch,
                           const checkpoint::ModelConfig& config,
                           const ModelOptions& options,
                           size_t logits_size) {
  BATON_RETURN_IF_ERROR(CheckTokens(batch, config, options.max_step_rows));
  BATON_RETURN_IF_ERROR(CheckSequences(batch));
  BATON_RETURN_IF_ERROR(CheckRowList(batch.logit_rows, batch.token_ids.size(), "logit_rows"));
  if (config.swiftkv()) {
    BATON_RETURN_IF_ERROR(CheckRowList(batch.survivors, batch.token_ids.size(), "survivors"));
    if (!std::includes(batch.survivors.begin(),
                       batch.survivors.end(),
                       batch.logit_rows.begin(),
                       batch.logit_rows.end())) {
      return Invalid("a logit row is not among the survivors");
    }
  }
  if (batch.logit_rows.size() > static_cast<size_t>(options.max_logit_rows)) {
    return Invalid(absl::StrCat(
        batch.logit_rows.size(), " logit rows exceed max_logit_rows ", options.max_logit_rows));
  }
  if (logits_size != batch.logit_rows.size() * static_cast<size_t>(config.vocab_size)) {
    return Invalid("logits has the wrong size");
  }
  if (batch.kv == nullptr && !batch.token_ids.empty()) {
    return Invalid("a step needs a place for its KV");
  }
  return absl::OkStatus();
}

}  // namespace baton::model
