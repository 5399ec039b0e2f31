#include "tests/gpu/bench/model_sequences.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "common/base/status_macros.h"
#include "common/kv/codec/dense_step_kv.h"
#include "common/model/forward.h"
#include "tests/gpu/bench/model_gathered.h"
#include "tests/gpu/bench/model_next_tokens.h"
#include "tests/gpu/bench/model_subject.h"

namespace baton::model {
namespace {

constexpr uint32_t kSeed = 20240527;

// What one step is made of, where a batch borrows it.
struct PackedStep {
  std::vector<int32_t> token_ids;
  std::vector<int32_t> positions;
  std::vector<SequenceSlice> sequences;
  std::vector<int32_t> last_rows;  // of the sequences that end here
};

std::vector<int32_t> RandomIds(size_t count, int32_t vocab) {
  std::mt19937 random(kSeed);
  std::vector<int32_t> ids(count);
  for (int32_t& id : ids) {
    id = static_cast<int32_t>(random() % static_cast<uint32_t>(vocab));
  }
  return ids;
}

}  // namespace

absl::StatusOr<ModelSequences> ModelSequences::Create(const ModelSubject& subject,
                                                      int32_t count,
                                                      int32_t tokens) {
  BATON_ASSIGN_OR_RETURN(std::vector<int32_t> page_tables, subject.pages.DrawTables(count, tokens));
  BATON_ASSIGN_OR_RETURN(ModelNextTokens next, ModelNextTokens::Create(subject, count));
  return ModelSequences(subject, count, tokens, std::move(page_tables), std::move(next));
}

ModelSequences::ModelSequences(const ModelSubject& subject,
                               int32_t count,
                               int32_t tokens,
                               std::vector<int32_t> page_tables,
                               ModelNextTokens next)
    : subject_(subject),
      count_(count),
      tokens_(tokens),
      token_ids_(RandomIds(static_cast<size_t>(count) * static_cast<size_t>(tokens),
                           subject.model.config().vocab_size)),
      page_tables_(std::move(page_tables)),
      logits_(static_cast<size_t>(count) * static_cast<size_t>(subject.model.config().vocab_size)),
      next_(std::move(next)) {
  const int32_t stride = subject.pages.pages().layout.pages_for(tokens);
  const int32_t layers = subject.pages.layers();
  for (int64_t s = 0; s < count; ++s) {
    tables_.push_back(
        {.data = page_tables_.data() + s * layers * stride, .stride = stride, .layers = layers});
  }
}

absl::Status ModelSequences::Step(int32_t begin, int32_t rows, std::span<float> logits) const {
  return Run(begin, rows, !logits.empty(), logits);
}

absl::Status ModelSequences::Run(int32_t begin,
                                 int32_t rows,
                                 bool wants_logits,
                                 std::span<float> logits) const {
  PackedStep step;
  for (int64_t s = 0; s < count_; ++s) {
    const auto row_begin = static_cast<int32_t>(step.token_ids.size());
    for (int32_t position = begin; position < begin + rows; ++position) {
      step.token_ids.push_back(token_ids_[static_cast<size_t>(s * tokens_ + position)]);
      step.positions.push_back(position);
    }
    step.sequences.push_back({.row_begin = row_begin, .row_count = rows});
    if (begin + rows == tokens_) {
      step.last_rows.push_back(row_begin + rows - 1);
    }
  }
  kv::DenseStepKv kv(subject_.ops, subject_.exec, subject_.pages.pages(), tables_);
  ForwardBatch batch;
  batch.token_ids = step.token_ids;
  batch.positions = step.positions;
  batch.sequences = step.sequences;
  batch.survivors = step.last_rows;
  if (wants_logits) {
    batch.logit_rows = step.last_rows;
  }
  batch.kv = &kv;
  return subject_.model.Forward(batch, logits);
}

absl::StatusOr<std::span<const float>> ModelSequences::Prefill(int32_t step_rows) {
  const int32_t most = step_rows / count_;
  for (int32_t begin = 0; begin < tokens_; begin += most) {
    const int32_t rows = std::min(most, tokens_ - begin);
    const bool ends = begin + rows == tokens_;
    BATON_RETURN_IF_ERROR(Step(begin, rows, ends ? std::span<float>(logits_) : std::span<float>()));
  }
  return logits_;
}

absl::StatusOr<std::span<const float>> ModelSequences::Decode() {
  BATON_RETURN_IF_ERROR(Step(tokens_ - 1, 1, logits_));
  return logits_;
}

absl::Status ModelSequences::NextTokens() {
  return Gathered(subject_.exec, [&]() -> absl::Status {
    BATON_RETURN_IF_ERROR(Run(tokens_ - 1, 1, /*wants_logits=*/true, {}));
    return next_.Fetch();
  });
}

}  // namespace baton::model
