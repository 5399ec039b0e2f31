// One transformer block over one tile of rows, full and upper layers alike.
#include <cmath>

#include "common/base/status_macros.h"
#include "common/model/transformer.h"

namespace baton::model {

absl::Status TransformerModel::Attention(
    kv::StepKv& kv, int32_t layer, float* x, RowSet& rows, const RowTile& tile) {
  const LayerWeights& weights = weights_.layers[static_cast<size_t>(layer)];
  const bool full = layer < config_.num_key_value_layers;
  const int32_t kv_layer = KvLayer(layer);
  const int64_t query_width = int64_t{config_.num_heads} * config_.head_dim;
  const int64_t kv_width = int64_t{config_.num_kv_heads} * config_.head_dim;
  const int64_t stride = weights.projection.matrix.out_features;
  float* normed = activations_.normed.as<float>();
  float* q = activations_.projected.as<float>();
  float* k = q + query_width;
  float* attended = activations_.attended.as<float>();

  BATON_RETURN_IF_ERROR(Norm(x, weights.input_norm, tile.row_count, normed));
  BATON_RETURN_IF_ERROR(Multiply(normed, weights.projection, tile.row_count, q, false));
  if (config_.qk_norm) {
    BATON_RETURN_IF_ERROR(HeadNorm(q, stride, weights.q_norm, tile.row_count, config_.num_heads));
  }
  if (config_.qk_norm && full) {
    BATON_RETURN_IF_ERROR(
        HeadNorm(k, stride, weights.k_norm, tile.row_count, config_.num_kv_heads));
  }
  // K stands right behind Q, so both rotate in one call.
  BATON_RETURN_IF_ERROR(ops_.rope(exec_,
                                  {.x = q,
                                   .x_stride = stride,
                                   .cosines = rows.cosines(tile),
                                   .sines = rows.sines(tile),
                                   .rows = tile.row_count,
                                   .heads = config_.num_heads + (full ? config_.num_kv_heads : 0),
                                   .half_dim = config_.head_dim / 2}));
  if (full) {
    BATON_RETURN_IF_ERROR(kv.Write(
        rows.Rows(tile), {.kv_layer = kv_layer, .k = k, .v = k + kv_width, .stride = stride}));
  }
  BATON_RETURN_IF_ERROR(
      kv.Attend(rows.Rows(tile),
                {.kv_layer = kv_layer,
                 .first_reader = layer == 0 || KvLayer(layer - 1) != kv_layer,
                 .last_reader = IsLastReader(layer),
                 .q = q,
                 .q_stride = stride,
                 .heads = config_.num_heads,
                 .scale = 1.0f / std::sqrt(static_cast<float>(config_.head_dim)),
                 .sliding_window = config_.sliding_window[static_cast<size_t>(layer)],
                 .out = attended,
                 .out_stride = query_width}));
  return Multiply(attended, weights.output, tile.row_count, x, /*accumulate=*/true);
}

absl::Status TransformerModel::Mlp(int32_t layer, float* x, const RowTile& tile) {
  const LayerWeights& weights = weights_.layers[static_cast<size_t>(layer)];
  float* normed = activations_.normed.as<float>();
  float* gate_up = activations_.gate_up.as<float>();
  float* gated = activations_.gated.as<float>();
  BATON_RETURN_IF_ERROR(Norm(x, weights.post_attention_norm, tile.row_count, normed));
  BATON_RETURN_IF_ERROR(Multiply(normed, weights.gate_up, tile.row_count, gate_up, false));
  BATON_RETURN_IF_ERROR(ops_.silu_mul(exec_,
                                      {.gate_up = gate_up,
                                       .gate_up_stride = 2 * int64_t{config_.intermediate_size},
                                       .rows = tile.row_count,
                                       .dim = config_.intermediate_size,
                                       .out = gated,
                                       .out_stride = config_.intermediate_size}));
  return Multiply(gated, weights.down, tile.row_count, x, /*accumulate=*/true);
}

}  // namespace baton::model
