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
#include "kernels/ops/params.h"

namespace baton::model {

absl::Status TransformerModel::Project(int32_t layer,
                                       const void* x,
                                       const RowSet& rows,
                                       const kv::KvRows& tile) {
  const LayerWeights& weights = weights_.layers[static_cast<size_t>(layer)];
  const bool full = layer < config_.num_key_value_layers;
  const int64_t stride = weights.projection.matrix.out_features;
  void* q = activations_.projected.data();
  void* k = Behind(q, int64_t{config_.num_heads} * config_.head_dim);
  // K stands right behind Q, so both rotate in one call.
  const int64_t rotated = config_.num_heads + (full ? config_.num_kv_heads : 0);

  kernels::MatmulParams product = Product(x, weights.projection, tile.rows, q);
  product.norm = NormOf(weights.input_norm);
  if (!config_.qk_norm) {
    product.rope = Rotation(rotated, rows, tile);
    return ops_.matmul(exec_, product);
  }
  BATON_RETURN_IF_ERROR(ops_.matmul(exec_, product));
  BATON_RETURN_IF_ERROR(HeadNorm(q, stride, weights.q_norm, tile.rows, config_.num_heads));
  if (full) {
    BATON_RETURN_IF_ERROR(HeadNorm(k, stride, weights.k_norm, tile.rows, config_.num_kv_heads));
  }
  return Rotate(q, stride, rotated, rows, tile);
}

absl::Status TransformerModel::Attention(
    kv::StepKv& kv, int32_t layer, void* x, const RowSet& rows, const kv::KvRows& tile) {
  const LayerWeights& weights = weights_.layers[static_cast<size_t>(layer)];
  const bool full = layer < config_.num_key_value_layers;
  const int32_t kv_layer = KvLayer(layer);
  const int64_t query_width = int64_t{config_.num_heads} * config_.head_dim;
  const int64_t kv_width = int64_t{config_.num_kv_heads} * config_.head_dim;
  const int64_t stride = weights.projection.matrix.out_features;
  void* q = activations_.projected.data();
  void* k = Behind(q, query_width);
  void* attended = activations_.attended.data();

  BATON_RETURN_IF_ERROR(Project(layer, x, rows, tile));
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
  return MultiplyAdd(attended, weights.output, tile.rows, x);
}

absl::Status TransformerModel::Mlp(int32_t layer, void* x, const kv::KvRows& tile) {
  const LayerWeights& weights = weights_.layers[static_cast<size_t>(layer)];
  void* gated = activations_.gated.data();
  kernels::MatmulParams product = Product(x, weights.gate_up, tile.rows, gated);
  product.norm = NormOf(weights.post_attention_norm);
  product.gate_up = activations_.gate_up.data();
  product.out_stride = config_.intermediate_size;
  BATON_RETURN_IF_ERROR(ops_.matmul(exec_, product));
  return MultiplyAdd(gated, weights.down, tile.rows, x);
}

}  // namespace baton::model
