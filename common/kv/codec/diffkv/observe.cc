// Significance scores of prompt tokens (DiffKV section 4): attention mass from the observed
// queries, per query the largest of the KV head's query heads, summed in order of the queries.
#include <algorithm>

#include "common/base/status_macros.h"
#include "common/kv/codec/codec_context.h"
#include "common/kv/codec/diffkv/diffkv_sequence.h"
#include "common/kv/codec/encoded_kv.h"
#include "common/kv/codec/step_kv.h"
#include "kernels/core/exec_context.h"
#include "kernels/ops/activations.h"
#include "kernels/ops/diffkv_params.h"

namespace baton::kv {
namespace {

// Queries whose probabilities are held at a time.
constexpr int32_t kObservedRows = 64;

}  // namespace

kernels::AttentionProbabilitiesParams DiffKvSequence::ProbabilitiesOf(const WorkingKv& working,
                                                                      const PromptRows& rows,
                                                                      const KvQueries& queries,
                                                                      const float* lse) const {
  return {.q = kernels::Advance(
              queries.q, rows.row_begin * queries.q_stride, codec_.context().ops->activations),
          .q_stride = queries.q_stride,
          .positions = rows.op_positions,
          .rows = rows.row_count,
          .page_table =
              working.table.data + static_cast<ptrdiff_t>(queries.kv_layer) * working.table.stride,
          .key_begin = static_cast<int32_t>(extension_begin_),
          .lse = lse,
          .pages = working.pages,
          .heads = queries.heads,
          .scale = queries.scale,
          .sliding_window = queries.sliding_window,
          .combine = !queries.first_reader,
          .probabilities = nullptr,
          .probability_stride = new_tokens()};
}

absl::Status DiffKvSequence::Accumulate(const kernels::ExecContext& exec,
                                        const PromptRows& rows,
                                        const float* probabilities,
                                        int64_t stride,
                                        int32_t kv_layer) {
  return codec_.context().ops->accumulate_scores(
      exec,
      {.probabilities = probabilities,
       .probability_stride = stride,
       .positions = rows.op_positions,
       .rows = rows.row_count,
       .first_token = static_cast<int32_t>(extension_begin_),
       .kv_heads = kv_heads_,
       .own = settings_.policy.scoring == kernels::DiffKvScoring::kLastWindow,
       .scores = scores(kv_layer),
       .score_stride = new_tokens()});
}

absl::Status DiffKvSequence::Observe(const WorkingKv& working,
                                     const PromptRows& rows,
                                     const KvQueries& queries) {
  const float* const lse =
      queries.lse == nullptr ? nullptr : queries.lse + int64_t{rows.row_begin} * queries.heads;
  return ObserveNew(working, rows, queries, lse);
}

absl::Status DiffKvSequence::ObserveNew(const WorkingKv& working,
                                        const PromptRows& rows,
                                        const KvQueries& queries,
                                        const float* lse) {
  return queries.first_reader && queries.last_reader ? ObserveAlone(working, rows, queries, lse)
                                                     : ObserveShared(working, rows, queries, lse);
}

float* DiffKvSequence::ProbabilitiesAside(const PromptRows& rows) {
  const bool whole = rows.row_count <= kObservedRows && rows.positions[0] == first_observed() &&
                     rows.positions[rows.row_count - 1] == prompt_tokens_ - 1;
  if (device_ == nullptr || !whole) {
    return nullptr;
  }
  const int64_t floats = int64_t{rows.row_count} * kv_heads_ * new_tokens();
  return device_->OwnProbabilities(codec_.blocks(), static_cast<size_t>(floats)).value_or(nullptr);
}

absl::Status DiffKvSequence::ObserveAlone(const WorkingKv& working,
                                          const PromptRows& rows,
                                          const KvQueries& queries,
                                          const float* lse) {
  const CodecContext& context = codec_.context();
  float* const aside = ProbabilitiesAside(rows);
  kernels::ExecContext exec = context.exec;
  if (aside != nullptr) {
    BATON_ASSIGN_OR_RETURN(exec, codec_.ExecToEncode(encode_turn_));
    observing_aside_ = true;
  }
  for (int32_t begin = 0; begin < rows.row_count; begin += kObservedRows) {
    const PromptRows part = {.row_begin = rows.row_begin + begin,
                             .row_count = std::min(kObservedRows, rows.row_count - begin),
                             .positions = rows.positions + begin,
                             .op_positions = rows.op_positions + begin};
    // Tokens behind the last query of the part have no probability: no room for them.
    const int64_t stride = int64_t{part.positions[part.row_count - 1]} + 1 - extension_begin_;
    const float* part_lse = lse == nullptr ? nullptr : lse + int64_t{begin} * queries.heads;
    kernels::AttentionProbabilitiesParams params =
        ProbabilitiesOf(working, part, queries, part_lse);
    params.probability_stride = stride;
    params.probabilities = aside;
    if (aside == nullptr) {
      BATON_ASSIGN_OR_RETURN(
          params.probabilities,
          codec_.Scratch(static_cast<size_t>(int64_t{part.row_count} * kv_heads_ * stride)));
    }
    BATON_RETURN_IF_ERROR(context.ops->attention_probabilities(exec, params));
    BATON_RETURN_IF_ERROR(Accumulate(exec, part, params.probabilities, stride, queries.kv_layer));
  }
  return absl::OkStatus();
}

absl::Status DiffKvSequence::ObserveShared(const WorkingKv& working,
                                           const PromptRows& rows,
                                           const KvQueries& queries,
                                           const float* lse) {
  const CodecContext& context = codec_.context();
  const int64_t first = first_observed();
  const auto row_floats = static_cast<size_t>(kv_heads_) * static_cast<size_t>(new_tokens());
  BATON_ASSIGN_OR_RETURN(
      float* const shared,
      SharedProbabilities(static_cast<size_t>(prompt_tokens_ - first) * row_floats));
  kernels::AttentionProbabilitiesParams params = ProbabilitiesOf(working, rows, queries, lse);
  params.probabilities = shared + static_cast<size_t>(rows.positions[0] - first) * row_floats;
  BATON_RETURN_IF_ERROR(context.ops->attention_probabilities(context.exec, params));
  return queries.last_reader
             ? Accumulate(context.exec, rows, params.probabilities, new_tokens(), queries.kv_layer)
             : absl::OkStatus();
}

}  // namespace baton::kv
