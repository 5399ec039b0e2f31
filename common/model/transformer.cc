#include "common/model/transformer.h"

#include <algorithm>
#include <utility>

#include "common/base/status_macros.h"
#include "common/model/rope.h"
#include "common/model/validate_batch.h"

namespace baton::model {

using kernels::Buffer;

TransformerModel::TransformerModel(const checkpoint::ModelConfig& config,
                                   uint64_t fingerprint,
                                   const kernels::OpTable& ops,
                                   const kernels::ExecContext& exec,
                                   const ModelOptions& options,
                                   ModelWeights weights)
    : config_(config),
      fingerprint_(fingerprint),
      ops_(ops),
      exec_(exec),
      options_(options),
      weights_(std::move(weights)),
      activations_(config, options.max_step_rows),
      inverse_frequencies_(RopeInverseFrequencies(config)),
      all_rows_(options.max_step_rows, inverse_frequencies_),
      survivor_rows_(config.swiftkv() ? options.max_step_rows : 0, inverse_frequencies_) {
  logit_index_.reserve(static_cast<size_t>(options.max_logit_rows));
}

KvShape TransformerModel::kv_shape() const {
  return {.layers = config_.num_kv_cache_layers(),
          .kv_heads = config_.num_kv_heads,
          .head_dim = config_.head_dim};
}

const float* TransformerModel::key_bias(int32_t kv_layer) const {
  const int32_t full_layers = config_.num_key_value_layers;
  const int64_t kv_width = int64_t{config_.num_kv_heads} * config_.head_dim;
  if (kv_layer < full_layers) {
    const float* bias = weights_.layers[static_cast<size_t>(kv_layer)].projection.bias_data();
    return bias == nullptr ? nullptr : bias + int64_t{config_.num_heads} * config_.head_dim;
  }
  const float* bias = weights_.fan_out.kv.bias_data();
  return bias == nullptr ? nullptr : bias + (kv_layer - full_layers) * kv_width;
}

absl::Status TransformerModel::Forward(const ForwardBatch& batch, std::span<float> logits) {
  BATON_RETURN_IF_ERROR(ValidateBatch(batch, config_, options_, logits.size()));
  if (batch.token_ids.empty()) {
    return absl::OkStatus();
  }
  const int32_t full_layers = config_.num_key_value_layers;
  float* residual = activations_.residual.as<float>();
  BATON_RETURN_IF_ERROR(all_rows_.SetAll(batch, ops_, exec_));
  BATON_RETURN_IF_ERROR(Embed(batch));
  BATON_RETURN_IF_ERROR(RunLayers(batch, 0, full_layers, residual, all_rows_));
  if (!config_.swiftkv()) {
    BATON_RETURN_IF_ERROR(ReportFinalHidden(batch, residual, all_rows_.rows()));
    return Logits(residual, batch.logit_rows, logits);
  }
  return ForwardUpper(batch, residual, logits);
}

absl::Status TransformerModel::Embed(const ForwardBatch& batch) {
  return ops_.embed(exec_,
                    {.table = weights_.embedding.data(),
                     .dtype = weights_.embedding_dtype,
                     .vocab = config_.vocab_size,
                     .dim = config_.hidden_size,
                     .token_ids = batch.token_ids.data(),
                     .rows = static_cast<int64_t>(batch.token_ids.size()),
                     .out = activations_.residual.as<float>()});
}

absl::Status TransformerModel::RunLayers(
    const ForwardBatch& batch, int32_t layer_begin, int32_t layer_end, float* x, RowSet& rows) {
  const bool writes_kv = layer_end <= config_.num_key_value_layers;
  for (int32_t layer = layer_begin; layer < layer_end; ++layer) {
    if (batch.on_hidden) {
      const auto size = static_cast<size_t>(rows.rows()) * static_cast<size_t>(config_.hidden_size);
      batch.on_hidden(layer, std::span<const float>(x, size), rows.rows());
    }
    for (const RowTile& tile : rows.tiles()) {
      float* tile_x = x + static_cast<ptrdiff_t>(tile.row_begin) * config_.hidden_size;
      BATON_RETURN_IF_ERROR(Attention(*batch.kv, layer, tile_x, rows, tile));
      BATON_RETURN_IF_ERROR(Mlp(layer, tile_x, tile));
    }
    if (writes_kv) {
      BATON_RETURN_IF_ERROR(batch.kv->LayersWritten(layer, layer + 1));
    }
    if (IsLastReader(layer)) {
      BATON_RETURN_IF_ERROR(batch.kv->LayerAttended(KvLayer(layer)));
    }
  }
  return absl::OkStatus();
}

int32_t TransformerModel::KvLayer(int32_t layer) const {
  const int32_t full_layers = config_.num_key_value_layers;
  return layer < full_layers ? layer
                             : full_layers + (layer - full_layers) / config_.key_value_group_size;
}

bool TransformerModel::IsLastReader(int32_t layer) const {
  return layer + 1 == config_.num_layers || KvLayer(layer + 1) != KvLayer(layer);
}

absl::Status TransformerModel::Logits(const float* x,
                                      std::span<const int32_t> row_index,
                                      std::span<float> logits) {
  const int64_t hidden = config_.hidden_size;
  const auto tile_rows = static_cast<size_t>(std::min(options_.max_step_rows, kTileRows));
  float* normed = activations_.normed.as<float>();
  for (size_t begin = 0; begin < row_index.size(); begin += tile_rows) {
    const size_t count = std::min(tile_rows, row_index.size() - begin);
    const auto rows = static_cast<int64_t>(count);
    BATON_RETURN_IF_ERROR(ops_.gather_rows(exec_,
                                           {.x = x,
                                            .x_stride = hidden,
                                            .row_index = row_index.data() + begin,
                                            .rows = rows,
                                            .dim = hidden,
                                            .out = normed,
                                            .out_stride = hidden}));
    BATON_RETURN_IF_ERROR(Norm(normed, weights_.final_norm, rows, normed));
    float* out = logits.data() + begin * static_cast<size_t>(config_.vocab_size);
    BATON_RETURN_IF_ERROR(Multiply(normed, weights_.lm_head, rows, out, /*accumulate=*/false));
  }
  return absl::OkStatus();
}

absl::Status TransformerModel::ReportFinalHidden(const ForwardBatch& batch,
                                                 const float* x,
                                                 int32_t rows) {
  if (!batch.on_hidden) {
    return absl::OkStatus();
  }
  Buffer normed(static_cast<size_t>(rows) * static_cast<size_t>(config_.hidden_size) *
                sizeof(float));
  BATON_RETURN_IF_ERROR(Norm(x, weights_.final_norm, rows, normed.as<float>()));
  batch.on_hidden(config_.num_layers,
                  std::span<const float>(normed.as<float>(), normed.size() / sizeof(float)),
                  rows);
  return absl::OkStatus();
}

absl::Status TransformerModel::Norm(const float* x,
                                    const Buffer& weight,
                                    int64_t rows,
                                    float* out) {
  return ops_.rms_norm(exec_,
                       {.x = x,
                        .x_stride = config_.hidden_size,
                        .weight = weight.as<float>(),
                        .epsilon = config_.rms_norm_eps,
                        .rows = rows,
                        .groups = 1,
                        .dim = config_.hidden_size,
                        .out = out,
                        .out_stride = config_.hidden_size});
}

absl::Status TransformerModel::HeadNorm(
    float* x, int64_t stride, const Buffer& weight, int64_t rows, int64_t heads) {
  return ops_.rms_norm(exec_,
                       {.x = x,
                        .x_stride = stride,
                        .weight = weight.as<float>(),
                        .epsilon = config_.rms_norm_eps,
                        .rows = rows,
                        .groups = heads,
                        .dim = config_.head_dim,
                        .out = x,
                        .out_stride = stride});
}

absl::Status TransformerModel::Multiply(
    const float* x, const Linear& linear, int64_t rows, float* out, bool accumulate) {
  return ops_.matmul(exec_,
                     {.x = x,
                      .x_stride = linear.matrix.in_features,
                      .weight = linear.matrix,
                      .bias = linear.bias_data(),
                      .accumulate = accumulate,
                      .rows = rows,
                      .out = out,
                      .out_stride = linear.matrix.out_features});
}

}  // namespace baton::model
