#include "common/kv/codec/fp8/fp8_decode_rows.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"

#include "common/kv/codec/codec_context.h"
#include "common/kv/codec/encoded_kv.h"
#include "common/kv/codec/fp8/fp8_codec.h"
#include "common/kv/codec/fp8/fp8_sequence.h"
#include "common/kv/codec/step_kv.h"
#include "kernels/core/step_arrays.h"
#include "kernels/ops/activations.h"
#include "kernels/ops/op_table.h"

namespace baton::kv {
namespace {

Fp8Sequence& SequenceOf(const DecodeRow& row) { return static_cast<Fp8Sequence&>(*row.kv); }

// As ops of a device have to be told of rows.
std::vector<DecodeRow> Ascending(std::span<const DecodeRow> rows) {
  std::vector<DecodeRow> ascending(rows.begin(), rows.end());
  std::ranges::sort(ascending, {}, &DecodeRow::row);
  return ascending;
}

}  // namespace

Fp8DecodeRows::Fp8DecodeRows(Fp8Codec& codec,
                             std::span<const DecodeRow> rows,
                             kernels::StepArrays& arrays)
    : codec_(codec),
      rows_(Ascending(rows)),
      first_row_(rows_.front().row),
      count_(static_cast<int64_t>(rows_.size())),
      positions_(static_cast<size_t>(rows_.back().row - first_row_ + 1)) {
  for (const DecodeRow& row : rows_) {
    positions_[static_cast<size_t>(row.row - first_row_)] = row.position;
  }
  const int32_t layers = codec.context().dimensions.layers;
  sequences_.reserve(static_cast<size_t>(layers) * rows_.size());
  for (int32_t kv_layer = 0; kv_layer < layers; ++kv_layer) {
    for (const DecodeRow& row : rows_) {
      sequences_.push_back({.row_begin = row.row - first_row_,
                            .row_count = 1,
                            .page_table = SequenceOf(row).op_page_table(kv_layer)});
    }
  }
  op_positions_ = arrays.Add(positions_);
  op_sequences_ = arrays.Add(sequences_);
}

absl::Status Fp8DecodeRows::Append(const KvEntries& entries) {
  for (const DecodeRow& row : rows_) {
    SequenceOf(row).NoteAppended(row.position);
  }
  const CodecContext& context = codec_.context();
  const int64_t offset = first_row_ * entries.stride;
  return context.ops->kv_write(context.exec,
                               {.k = kernels::Advance(entries.k, offset, context.ops->activations),
                                .k_stride = entries.stride,
                                .v = kernels::Advance(entries.v, offset, context.ops->activations),
                                .v_stride = entries.stride,
                                .positions = op_positions_,
                                .rows = static_cast<int64_t>(positions_.size()),
                                .sequences = op_sequences_ + entries.kv_layer * count_,
                                .num_sequences = count_,
                                .pages = codec_.pages()});
}

absl::Status Fp8DecodeRows::Attend(const KvQueries& queries) {
  for (const DecodeRow& row : rows_) {
    SequenceOf(row).CountAttention(row.position);
  }
  const CodecContext& context = codec_.context();
  return context.ops->paged_attention(
      context.exec,
      {.q = kernels::Advance(queries.q, first_row_ * queries.q_stride, context.ops->activations),
       .q_stride = queries.q_stride,
       .positions = op_positions_,
       .sequences = op_sequences_ + queries.kv_layer * count_,
       .num_sequences = count_,
       .pages = codec_.pages(),
       .heads = queries.heads,
       .scale = queries.scale,
       .sliding_window = queries.sliding_window,
       .rows = count_,
       .max_sequence_rows = 1,
       .out =
           kernels::Advance(queries.out, first_row_ * queries.out_stride, context.ops->activations),
       .out_stride = queries.out_stride});
}

}  // namespace baton::kv
