// SwiftKV (arXiv 2410.03960, section 3): keys and values of all upper layers come from the hidden
// state that enters them, so only the survivors, the last tokens of a prompt, run through them.
#include <algorithm>

#include "common/base/status_macros.h"
#include "common/model/transformer.h"

namespace baton::model {

absl::Status TransformerModel::ForwardUpper(const ForwardBatch& batch,
                                            const float* residual,
                                            std::span<float> logits) {
  const int32_t full_layers = config_.num_key_value_layers;
  // All keys and values of the step first: a survivor attends to those of its own step.
  BATON_RETURN_IF_ERROR(FanOut(*batch.kv, residual, all_rows_));
  BATON_RETURN_IF_ERROR(batch.kv->LayersWritten(full_layers, config_.num_kv_cache_layers()));
  if (batch.survivors.empty()) {
    return absl::OkStatus();
  }
  float* survivors = activations_.survivors.as<float>();
  BATON_RETURN_IF_ERROR(ops_.gather_rows(exec_,
                                         {.x = residual,
                                          .x_stride = config_.hidden_size,
                                          .row_index = batch.survivors.data(),
                                          .rows = static_cast<int64_t>(batch.survivors.size()),
                                          .dim = config_.hidden_size,
                                          .out = survivors,
                                          .out_stride = config_.hidden_size}));
  BATON_RETURN_IF_ERROR(survivor_rows_.SetSurvivors(batch, ops_, exec_));
  BATON_RETURN_IF_ERROR(
      RunLayers(batch, full_layers, config_.num_layers, survivors, survivor_rows_));
  BATON_RETURN_IF_ERROR(ReportFinalHidden(batch, survivors, survivor_rows_.rows()));
  logit_index_.clear();
  for (const int32_t row : batch.logit_rows) {
    const auto it = std::lower_bound(batch.survivors.begin(), batch.survivors.end(), row);
    logit_index_.push_back(static_cast<int32_t>(it - batch.survivors.begin()));
  }
  return Logits(survivors, logit_index_, logits);
}

absl::Status TransformerModel::FanOut(kv::StepKv& kv, const float* x, RowSet& rows) {
  for (const RowTile& tile : rows.tiles()) {
    const float* tile_x = x + static_cast<ptrdiff_t>(tile.row_begin) * config_.hidden_size;
    BATON_RETURN_IF_ERROR(FanOutTile(kv, tile_x, rows, tile));
  }
  return absl::OkStatus();
}

absl::Status TransformerModel::FanOutTile(kv::StepKv& kv,
                                          const float* x,
                                          RowSet& rows,
                                          const RowTile& tile) {
  float* normed = activations_.normed.as<float>();
  BATON_RETURN_IF_ERROR(Norm(x, weights_.fan_out.norm, tile.row_count, normed));
  BATON_RETURN_IF_ERROR(kv.WriteHidden(rows.Rows(tile), normed, config_.hidden_size));
  return FanOutNormed(kv, normed, rows, tile);
}

absl::Status TransformerModel::ExpandHidden(const ForwardBatch& batch,
                                            std::span<const float> hidden) {
  if (!config_.swiftkv()) {
    return Model::ExpandHidden(batch, hidden);
  }
  if (hidden.size() != batch.positions.size() * static_cast<size_t>(config_.hidden_size) ||
      batch.positions.size() > static_cast<size_t>(options_.max_step_rows)) {
    return absl::InvalidArgumentError("hidden states: the wrong number of rows");
  }
  BATON_RETURN_IF_ERROR(all_rows_.SetAll(batch, ops_, exec_));
  for (const RowTile& tile : all_rows_.tiles()) {
    const float* normed =
        hidden.data() + static_cast<ptrdiff_t>(tile.row_begin) * config_.hidden_size;
    BATON_RETURN_IF_ERROR(FanOutNormed(*batch.kv, normed, all_rows_, tile));
  }
  return absl::OkStatus();
}

absl::Status TransformerModel::FanOutNormed(kv::StepKv& kv,
                                            const float* normed,
                                            RowSet& rows,
                                            const RowTile& tile) {
  const FanOutWeights& weights = weights_.fan_out;
  const int32_t full_layers = config_.num_key_value_layers;
  const int32_t groups = config_.num_kv_cache_layers() - full_layers;
  const int64_t kv_width = int64_t{config_.num_kv_heads} * config_.head_dim;
  const int64_t stride = weights.kv.matrix.out_features;
  float* keys = activations_.projected.as<float>();  // K of all groups, then V of all groups
  float* values = keys + groups * kv_width;

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
    BATON_RETURN_IF_ERROR(kv.Write(rows.Rows(tile),
                                   {.kv_layer = full_layers + group,
                                    .k = keys + group * kv_width,
                                    .v = values + group * kv_width,
                                    .stride = stride}));
  }
  return absl::OkStatus();
}

}  // namespace baton::model
