#include "common/model/transformer.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "common/base/status_macros.h"
#include "common/checkpoint/model_config.h"
#include "common/kv/codec/step_kv.h"
#include "common/model/activations.h"
#include "common/model/forward.h"
#include "common/model/model.h"
#include "common/model/rope.h"
#include "common/model/row_set.h"
#include "common/model/validate_batch.h"
#include "common/model/weights.h"
#include "kernels/core/memory.h"
#include "kernels/ops/activations.h"
#include "kernels/ops/op_table.h"
#include "kernels/ops/params.h"

namespace baton::model {

absl::StatusOr<std::unique_ptr<Model>> TransformerModel::Create(TransformerContext context,
                                                                ModelWeights weights) {
  kernels::MemorySpace& space = *context.exec.memory;
  const checkpoint::ModelConfig& config = context.config;
  const int32_t max_rows = context.options.max_step_rows;
  const int32_t tile_rows = TileRows(*context.ops, max_rows);
  const int64_t half_dim = config.head_dim / 2;
  BATON_ASSIGN_OR_RETURN(Activations activations,
                         Activations::Create(config, max_rows, *context.ops, space));
  BATON_ASSIGN_OR_RETURN(RowSet all_rows, RowSet::Create(max_rows, tile_rows, half_dim, space));
  BATON_ASSIGN_OR_RETURN(
      RowSet survivor_rows,
      RowSet::Create(config.swiftkv() ? max_rows : 0, tile_rows, half_dim, space));
  kernels::Memory logits;
  if (!space.is_host()) {
    const auto rows = static_cast<size_t>(context.options.max_logit_rows);
    BATON_ASSIGN_OR_RETURN(
        logits, space.Allocate(rows * static_cast<size_t>(config.vocab_size) * sizeof(float)));
  }
  std::unique_ptr<TransformerModel> model(new TransformerModel(std::move(context),
                                                               std::move(weights),
                                                               std::move(activations),
                                                               std::move(all_rows),
                                                               std::move(survivor_rows)));
  model->logits_ = std::move(logits);
  return model;
}

TransformerModel::TransformerModel(TransformerContext context,
                                   ModelWeights weights,
                                   Activations activations,
                                   RowSet all_rows,
                                   RowSet survivor_rows)
    : config_(std::move(context.config)),
      fingerprint_(context.fingerprint),
      ops_(*context.ops),
      exec_(context.exec),
      options_(context.options),
      weights_(std::move(weights)),
      activations_(std::move(activations)),
      inverse_frequencies_(RopeInverseFrequencies(config_)),
      all_rows_(std::move(all_rows)),
      survivor_rows_(std::move(survivor_rows)),
      arrays_(*exec_.memory) {
  logit_index_.reserve(static_cast<size_t>(options_.max_logit_rows));
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
  const bool stays = logits.empty() && !exec_.memory->is_host();
  const size_t wanted = batch.logit_rows.size() * static_cast<size_t>(config_.vocab_size);
  BATON_RETURN_IF_ERROR(ValidateBatch(batch, config_, options_, stays ? wanted : logits.size()));
  if (batch.token_ids.empty()) {
    return absl::OkStatus();
  }
  void* residual = activations_.residual.data();
  BATON_RETURN_IF_ERROR(Prepare(batch));
  BATON_RETURN_IF_ERROR(Embed(all_rows_.rows()));
  BATON_RETURN_IF_ERROR(RunLayers(batch, 0, config_.num_key_value_layers, residual, all_rows_));
  if (config_.swiftkv()) {
    return ForwardUpper(batch, residual, logits);
  }
  BATON_RETURN_IF_ERROR(ReportFinalHidden(batch, residual, all_rows_.rows()));
  return Logits(residual, logits);
}

absl::Status TransformerModel::Prepare(const ForwardBatch& batch) {
  arrays_.Clear();
  all_rows_.SetAll(batch, 0, arrays_);
  logit_index_.assign(batch.logit_rows.begin(), batch.logit_rows.end());
  inputs_ = {.token_ids = arrays_.Add(batch.token_ids)};
  if (config_.swiftkv()) {
    survivor_rows_.SetSurvivors(batch, static_cast<int32_t>(all_rows_.tiles().size()), arrays_);
    inputs_.survivors = arrays_.Add(batch.survivors);
    for (int32_t& row : logit_index_) {
      const auto it = std::lower_bound(batch.survivors.begin(), batch.survivors.end(), row);
      row = static_cast<int32_t>(it - batch.survivors.begin());
    }
  }
  inputs_.logit_index = arrays_.Add(logit_index_);
  return UploadTiles(batch);
}

absl::Status TransformerModel::UploadTiles(const ForwardBatch& batch) {
  const float* frequencies = weights_.inverse_frequencies.as<float>();
  tiles_.assign(all_rows_.tiles().begin(), all_rows_.tiles().end());
  if (config_.swiftkv()) {
    tiles_.insert(tiles_.end(), survivor_rows_.tiles().begin(), survivor_rows_.tiles().end());
  }
  BATON_RETURN_IF_ERROR(batch.kv->Prepare(tiles_, arrays_));
  BATON_RETURN_IF_ERROR(arrays_.Upload());
  BATON_RETURN_IF_ERROR(all_rows_.ComputeAngles(ops_, exec_, frequencies));
  return config_.swiftkv() ? survivor_rows_.ComputeAngles(ops_, exec_, frequencies)
                           : absl::OkStatus();
}

absl::Status TransformerModel::Embed(int64_t rows) {
  return ops_.embed(exec_,
                    {.table = weights_.embedding.data(),
                     .dtype = weights_.embedding_dtype,
                     .vocab = config_.vocab_size,
                     .dim = config_.hidden_size,
                     .token_ids = inputs_.token_ids,
                     .rows = rows,
                     .out = activations_.residual.data()});
}

absl::Status TransformerModel::RunLayers(const ForwardBatch& batch,
                                         int32_t layer_begin,
                                         int32_t layer_end,
                                         void* x,
                                         const RowSet& rows) {
  const bool writes_kv = layer_end <= config_.num_key_value_layers;
  for (int32_t layer = layer_begin; layer < layer_end; ++layer) {
    BATON_RETURN_IF_ERROR(ReportHidden(batch, layer, x, rows.rows()));
    for (const kv::KvRows& tile : rows.tiles()) {
      void* tile_x = Row(x, tile.row_begin);
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

absl::Status TransformerModel::Logits(const void* x, std::span<float> logits) {
  const bool on_host = exec_.memory->is_host();
  const auto most = static_cast<size_t>(
      std::min(TileRows(ops_, options_.max_step_rows), options_.max_logit_rows));
  const auto vocab = static_cast<size_t>(config_.vocab_size);
  for (size_t begin = 0; begin < logit_index_.size(); begin += most) {
    const size_t rows = std::min(most, logit_index_.size() - begin);
    float* out = (on_host ? logits.data() : logits_.as<float>()) + begin * vocab;
    BATON_RETURN_IF_ERROR(
        LogitTile(x, static_cast<int64_t>(begin), static_cast<int64_t>(rows), out));
  }
  return on_host || logits.empty()
             ? absl::OkStatus()
             : exec_.memory->Download(logits.data(), logits_.data(), logits.size_bytes());
}

absl::Status TransformerModel::LogitTile(const void* x,
                                         int64_t first_row,
                                         int64_t rows,
                                         float* out) {
  void* normed = activations_.normed.data();
  BATON_RETURN_IF_ERROR(ops_.gather_rows(exec_,
                                         {.x = x,
                                          .x_stride = config_.hidden_size,
                                          .row_index = inputs_.logit_index + first_row,
                                          .rows = rows,
                                          .dim = config_.hidden_size,
                                          .out = normed,
                                          .out_stride = config_.hidden_size}));
  kernels::MatmulParams product = Product(normed, weights_.lm_head, rows, out);
  product.norm = NormOf(weights_.final_norm);
  product.wide = true;
  return ops_.matmul(exec_, product);
}

absl::Status TransformerModel::Norm(const void* x,
                                    const kernels::Memory& weight,
                                    int64_t rows,
                                    void* out) {
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
    void* x, int64_t stride, const kernels::Memory& weight, int64_t rows, int64_t heads) {
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

kernels::InputNorm TransformerModel::NormOf(const kernels::Memory& weight) {
  return {.weight = weight.as<float>(),
          .epsilon = config_.rms_norm_eps,
          .normed = activations_.normed.data()};
}

kernels::OutputRope TransformerModel::Rotation(int64_t heads,
                                               const RowSet& rows,
                                               const kv::KvRows& tile) const {
  return {.cosines = rows.cosines(tile),
          .sines = rows.sines(tile),
          .heads = heads,
          .half_dim = config_.head_dim / 2};
}

absl::Status TransformerModel::Rotate(
    void* x, int64_t stride, int64_t heads, const RowSet& rows, const kv::KvRows& tile) {
  const kernels::OutputRope rotation = Rotation(heads, rows, tile);
  return ops_.rope(exec_,
                   {.x = x,
                    .x_stride = stride,
                    .cosines = rotation.cosines,
                    .sines = rotation.sines,
                    .rows = tile.rows,
                    .heads = rotation.heads,
                    .half_dim = rotation.half_dim});
}

kernels::MatmulParams TransformerModel::Product(const void* x,
                                                const Linear& linear,
                                                int64_t rows,
                                                void* out) const {
  return {.x = x,
          .x_stride = linear.matrix.in_features,
          .weight = linear.matrix,
          .bias = linear.bias_data(),
          .rows = rows,
          .out = out,
          .out_stride = linear.matrix.out_features};
}

absl::Status TransformerModel::Multiply(const void* x,
                                        const Linear& linear,
                                        int64_t rows,
                                        void* out) {
  return ops_.matmul(exec_, Product(x, linear, rows, out));
}

absl::Status TransformerModel::MultiplyAdd(const void* x,
                                           const Linear& linear,
                                           int64_t rows,
                                           void* out) {
  kernels::MatmulParams product = Product(x, linear, rows, out);
  product.accumulate = true;
  return ops_.matmul(exec_, product);
}

void* TransformerModel::Behind(void* x, int64_t count) const {
  return kernels::Advance(x, count, ops_.activations);
}

const void* TransformerModel::Behind(const void* x, int64_t count) const {
  return kernels::Advance(x, count, ops_.activations);
}

}  // namespace baton::model
