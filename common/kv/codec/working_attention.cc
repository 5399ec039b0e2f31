#include "common/kv/codec/working_attention.h"

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"

#include "common/kv/codec/codec_context.h"
#include "common/kv/codec/encoded_kv.h"
#include "common/kv/codec/step_kv.h"
#include "kernels/core/dtype.h"
#include "kernels/ops/activations.h"
#include "kernels/ops/op_table.h"
#include "kernels/ops/params.h"

namespace baton::kv {

std::vector<kernels::SequenceRows> WorkingRows(const WorkingKv& working,
                                               const PromptRows& rows,
                                               int64_t first_key) {
  std::vector<kernels::SequenceRows> by_layer;
  by_layer.reserve(static_cast<size_t>(working.table.layers));
  for (int32_t kv_layer = 0; kv_layer < working.table.layers; ++kv_layer) {
    by_layer.push_back(
        {.row_count = rows.row_count,
         .page_table = working.table.data + static_cast<ptrdiff_t>(kv_layer) * working.table.stride,
         .key_begin = static_cast<int32_t>(first_key)});
  }
  return by_layer;
}

absl::Status AttendDenseKeys(const CodecContext& context,
                             const kernels::DensePages& pages,
                             const PromptRows& rows,
                             const KvQueries& queries,
                             const kernels::SequenceRows* op_rows,
                             float* lse,
                             bool merge) {
  const kernels::DType activations = context.ops->activations;
  return context.ops->paged_attention(
      context.exec,
      {.q = kernels::Advance(queries.q, rows.row_begin * queries.q_stride, activations),
       .q_stride = queries.q_stride,
       .positions = rows.op_positions,
       .sequences = op_rows,
       .num_sequences = 1,
       .pages = pages,
       .heads = queries.heads,
       .scale = queries.scale,
       .sliding_window = queries.sliding_window,
       .rows = rows.row_count,
       .max_sequence_rows = rows.row_count,
       .out = kernels::Advance(queries.out, rows.row_begin * queries.out_stride, activations),
       .out_stride = queries.out_stride,
       .lse = lse,
       .merge = merge});
}

}  // namespace baton::kv
