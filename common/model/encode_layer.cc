#include "common/model/transformer.h"

namespace baton::model {

absl::Status TransformerModel::EncodeLayer(const kernels::DensePages& pages,
                                           int32_t kv_layer,
                                           const float* k,
                                           const float* v,
                                           int64_t stride,
                                           RowSet& rows,
                                           const RowTile& tile) {
  const std::span<const kernels::SequenceRows> sequences = rows.Sequences(tile, kv_layer);
  return ops_.kv_write(exec_,
                       {.k = k,
                        .k_stride = stride,
                        .v = v,
                        .v_stride = stride,
                        .positions = rows.positions(tile),
                        .sequences = sequences.data(),
                        .num_sequences = static_cast<int64_t>(sequences.size()),
                        .pages = pages});
}

}  // namespace baton::model
