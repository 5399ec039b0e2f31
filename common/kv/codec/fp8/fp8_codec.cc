#include "common/kv/codec/fp8/fp8_codec.h"

#include <algorithm>
#include <span>

#include "common/kv/codec/encoded_kv.h"
#include "common/kv/codec/fp8/fp8_sequence.h"
#include "common/kv/codec/step_kv.h"
#include "kernels/ops/op_table.h"

namespace baton::kv {

void Fp8Codec::ListSequences(std::span<const DecodeRow> rows, int32_t kv_layer) {
  sequences_.clear();
  for (const DecodeRow& row : rows) {
    const auto index = static_cast<size_t>(row.row);
    positions_.resize(std::max(positions_.size(), index + 1));
    positions_[index] = row.position;
    sequences_.push_back(
        {.row_begin = row.row,
         .row_count = 1,
         .page_table = static_cast<const Fp8Sequence&>(*row.kv).page_table(kv_layer)});
  }
}

absl::Status Fp8Codec::Append(std::span<const DecodeRow> rows, const KvEntries& entries) {
  ListSequences(rows, entries.kv_layer);
  for (const DecodeRow& row : rows) {
    static_cast<Fp8Sequence&>(*row.kv).NoteAppended(row.position);
  }
  return context_.ops->kv_write(context_.exec,
                                {.k = entries.k,
                                 .k_stride = entries.stride,
                                 .v = entries.v,
                                 .v_stride = entries.stride,
                                 .positions = positions_.data(),
                                 .sequences = sequences_.data(),
                                 .num_sequences = static_cast<int64_t>(sequences_.size()),
                                 .pages = pages()});
}

absl::Status Fp8Codec::Attend(std::span<const DecodeRow> rows, const KvQueries& queries) {
  ListSequences(rows, queries.kv_layer);
  for (const DecodeRow& row : rows) {
    static_cast<Fp8Sequence&>(*row.kv).CountAttention(row.position);
  }
  return context_.ops->paged_attention(context_.exec,
                                       {.q = queries.q,
                                        .q_stride = queries.q_stride,
                                        .positions = positions_.data(),
                                        .sequences = sequences_.data(),
                                        .num_sequences = static_cast<int64_t>(sequences_.size()),
                                        .pages = pages(),
                                        .heads = queries.heads,
                                        .scale = queries.scale,
                                        .sliding_window = queries.sliding_window,
                                        .out = queries.out,
                                        .out_stride = queries.out_stride});
}

}  // namespace baton::kv
