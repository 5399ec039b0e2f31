#include "common/kv/codec/dense_step_kv.h"

namespace baton::kv {

std::span<const kernels::SequenceRows> DenseStepKv::Sequences(const KvRows& rows,
                                                              int32_t kv_layer) {
  sequences_.clear();
  for (const RowRun& run : rows.runs) {
    const DenseTable& sequence = table(run.sequence);
    sequences_.push_back(
        {.row_begin = run.row_begin,
         .row_count = run.row_count,
         .page_table = sequence.data + static_cast<ptrdiff_t>(kv_layer) * sequence.stride});
  }
  return sequences_;
}

absl::Status DenseStepKv::Write(const KvRows& rows, const KvEntries& entries) {
  const auto sequences = Sequences(rows, entries.kv_layer);
  return ops_.kv_write(exec_,
                       {.k = entries.k,
                        .k_stride = entries.stride,
                        .v = entries.v,
                        .v_stride = entries.stride,
                        .positions = rows.positions,
                        .sequences = sequences.data(),
                        .num_sequences = static_cast<int64_t>(sequences.size()),
                        .pages = pages_});
}

absl::Status DenseStepKv::Attend(const KvRows& rows, const KvQueries& queries) {
  const auto sequences = Sequences(rows, queries.kv_layer);
  return ops_.paged_attention(exec_,
                              {.q = queries.q,
                               .q_stride = queries.q_stride,
                               .positions = rows.positions,
                               .sequences = sequences.data(),
                               .num_sequences = static_cast<int64_t>(sequences.size()),
                               .pages = pages_,
                               .heads = queries.heads,
                               .scale = queries.scale,
                               .sliding_window = queries.sliding_window,
                               .out = queries.out,
                               .out_stride = queries.out_stride});
}

}  // namespace baton::kv
