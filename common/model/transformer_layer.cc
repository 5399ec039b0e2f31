// One transformer block over one tile of rows, full and upper layers alike.
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"

#include "common/base/status_macros.h"
#include "common/kv/codec/step_kv.h"
#include "common/model/row_set.h"
#include "common/model/transformer.h"
#include "common/model/weights.h"
#include "kernels/ops/op_table.h"

namespace baton::model {

absl::Status TransformerModel::Attention(
    kv::StepKv& kv, int32_t layer, void* x, const RowSet& rows, const kv::KvRows& tile) {
  const LayerWeights& weights = weights_.layers[static_cast<size_t>(layer)];
  const bool full = layer < config_.num_key_value_layers;
  const int32_t kv_layer = KvLayer(layer);
  const int64_t query_width = int64_t{config_.num_heads} * config_.head_dim;
  const int64_t kv_width = int64_t{config_.num_kv_heads} * config_.head_dim;
  const int64_t stride = weights.projection.matrix.out_features;
  void* normed = activations_.normed.data();
  void* q = activations_.projected.data();
  void* k = Behind(q, query_width);
  void* attended = activations_.attended.data();

  BATON_RETURN_IF_ERROR(Norm(x, weights.input_norm, tile.rows, normed));
  BATON_RETURN_IF_ERROR(Multiply(normed, weights.projection, tile.rows, q, Into::kSet));
  if (config_.qk_norm) {
    BATON_RETURN_IF_ERROR(HeadNorm(q, stride, weights.q_norm, tile.rows, config_.num_heads));
  }
  if (config_.qk_norm && full) {
    BATON_RETURN_IF_ERROR(HeadNorm(k, stride, weights.k_norm, tile.rows, config_.num_kv_heads));
  }
  // K stands right behind Q, so both rotate in one call.
  const int64_t rotated = config_.num_heads + (full ? config_.num_kv_heads : 0);
  BATON_RETURN_IF_ERROR(Rotate(q, stride, rotated, rows, tile));
  if (full) {
    BATON_RETURN_IF_ERROR(
        kv.Write(tile, {.kv_layer = kv_layer, .k = k, .v = Behind(k, kv_width), .stride = stride}));
  }
  BATON_RETURN_IF_ERROR(
      kv.Attend(tile,
                {.kv_layer = kv_layer,
                 .first_reader = layer == 0 || KvLayer(layer - 1) != kv_layer,
                 .last_reader = IsLastReader(layer),
                 .q = q,
                 .q_stride = stride,
                 .heads = config_.num_heads,
                 .scale = 1.0f / std::sqrt(static_cast<float>(config_.head_dim)),
                 .sliding_window = config_.sliding_window[static_cast<size_t>(layer)],
                 .out = attended,
                 .out_stride = query_width,
                 .lse = activations_.lse.as<float>()}));
  return Multiply(attended, weights.output, tile.rows, x, Into::kAdd);
}

absl::Status TransformerModel::Mlp(int32_t layer, void* x, const kv::KvRows& tile) {
  const LayerWeights& weights = weights_.layers[static_cast<size_t>(layer)];
  void* normed = activations_.normed.data();
  void* gate_up = activations_.gate_up.data();
  void* gated = activations_.gated.data();
  BATON_RETURN_IF_ERROR(Norm(x, weights.post_attention_norm, tile.rows, normed));
  BATON_RETURN_IF_ERROR(Multiply(normed, weights.gate_up, tile.rows, gate_up, Into::kSet));
  BATON_RETURN_IF_ERROR(ops_.silu_mul(exec_,
                                      {.gate_up = gate_up,
                                       .gate_up_stride = 2 * int64_t{config_.intermediate_size},
                                       .rows = tile.rows,
                                       .dim = config_.intermediate_size,
                                       .out = gated,
                                       .out_stride = config_.intermediate_size}));
  return Multiply(gated, weights.down, tile.rows, x, Into::kAdd);
}

}  // namespace baton::model
