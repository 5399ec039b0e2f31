// SwiftKV: keys and values of all upper layers from one hidden state (swiftkv.md 1.2, steps 2-4).
#include "common/base/status_macros.h"
#include "common/model/transformer.h"

namespace baton::model {

absl::Status TransformerModel::FanOut(const kernels::DensePages& pages,
                                      const float* x,
                                      RowSet& rows) {
  for (const RowTile& tile : rows.tiles()) {
    const float* tile_x = x + static_cast<ptrdiff_t>(tile.row_begin) * config_.hidden_size;
    BATON_RETURN_IF_ERROR(FanOutTile(pages, tile_x, rows, tile));
  }
  return absl::OkStatus();
}

absl::Status TransformerModel::FanOutTile(const kernels::DensePages& pages,
                                          const float* x,
                                          RowSet& rows,
                                          const RowTile& tile) {
  const FanOutWeights& weights = weights_.fan_out;
  const int32_t full_layers = config_.num_key_value_layers;
  const int32_t groups = config_.num_kv_cache_layers() - full_layers;
  const int64_t kv_width = int64_t{config_.num_kv_heads} * config_.head_dim;
  const int64_t stride = weights.kv.matrix.out_features;
  float* normed = activations_.normed.as<float>();
  float* keys = activations_.projected.as<float>();  // K of all groups, then V of all groups
  float* values = keys + groups * kv_width;

  BATON_RETURN_IF_ERROR(Norm(x, weights.norm, tile.row_count, normed));
  BATON_RETURN_IF_ERROR(Multiply(normed, weights.kv, tile.row_count, keys, false));
  for (size_t group = 0; group < weights.k_norms.size(); ++group) {
    BATON_RETURN_IF_ERROR(HeadNorm(keys + static_cast<ptrdiff_t>(group) * kv_width,
                                   stride,
                                   weights.k_norms[group],
                                   tile.row_count,
                                   config_.num_kv_heads));
  }
  BATON_RETURN_IF_ERROR(ops_.rope(exec_,
                                  {.x = keys,
                                   .x_stride = stride,
                                   .cosines = rows.cosines(tile),
                                   .sines = rows.sines(tile),
                                   .rows = tile.row_count,
                                   .heads = int64_t{groups} * config_.num_kv_heads,
                                   .half_dim = config_.head_dim / 2}));
  for (int32_t group = 0; group < groups; ++group) {
    const std::span<const kernels::SequenceRows> sequences =
        rows.Sequences(tile, full_layers + group);
    BATON_RETURN_IF_ERROR(ops_.kv_write(exec_,
                                        {.k = keys + group * kv_width,
                                         .k_stride = stride,
                                         .v = values + group * kv_width,
                                         .v_stride = stride,
                                         .positions = rows.positions(tile),
                                         .sequences = sequences.data(),
                                         .num_sequences = static_cast<int64_t>(sequences.size()),
                                         .pages = pages}));
  }
  return absl::OkStatus();
}

}  // namespace baton::model
