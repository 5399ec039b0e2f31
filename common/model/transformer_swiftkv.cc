// SwiftKV (arXiv 2410.03960, section 3): keys and values of all upper layers come from the hidden
// state that enters them, so only the survivors, the last tokens of a prompt, run through them.
#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/status.h"

#include "common/base/status_macros.h"
#include "common/kv/codec/step_kv.h"
#include "common/model/forward.h"
#include "common/model/model.h"
#include "common/model/transformer.h"
#include "common/model/weights.h"
#include "kernels/ops/op_table.h"

namespace baton::model {

absl::Status TransformerModel::ForwardUpper(const ForwardBatch& batch,
                                            const void* residual,
                                            std::span<float> logits) {
  const int32_t full_layers = config_.num_key_value_layers;
  // All keys and values of the step first: a survivor attends to those of its own step.
  BATON_RETURN_IF_ERROR(FanOut(*batch.kv, residual));
  BATON_RETURN_IF_ERROR(batch.kv->LayersWritten(full_layers, config_.num_kv_cache_layers()));
  if (batch.survivors.empty()) {
    return absl::OkStatus();
  }
  void* survivors = activations_.survivors.data();
  BATON_RETURN_IF_ERROR(ops_.gather_rows(exec_,
                                         {.x = residual,
                                          .x_stride = config_.hidden_size,
                                          .row_index = inputs_.survivors,
                                          .rows = survivor_rows_.rows(),
                                          .dim = config_.hidden_size,
                                          .out = survivors,
                                          .out_stride = config_.hidden_size}));
  BATON_RETURN_IF_ERROR(
      RunLayers(batch, full_layers, config_.num_layers, survivors, survivor_rows_));
  BATON_RETURN_IF_ERROR(ReportFinalHidden(batch, survivors, survivor_rows_.rows()));
  return Logits(survivors, logits);
}

absl::Status TransformerModel::FanOut(kv::StepKv& kv, const void* x) {
  for (const kv::KvRows& tile : all_rows_.tiles()) {
    BATON_RETURN_IF_ERROR(FanOutTile(kv, Row(x, tile.row_begin), tile));
  }
  return absl::OkStatus();
}

absl::Status TransformerModel::FanOutTile(kv::StepKv& kv, const void* x, const kv::KvRows& tile) {
  void* normed = activations_.normed.data();
  BATON_RETURN_IF_ERROR(Norm(x, weights_.fan_out.norm, tile.rows, normed));
  BATON_RETURN_IF_ERROR(kv.WriteHidden(tile, normed, config_.hidden_size));
  return FanOutNormed(kv, normed, tile);
}

absl::Status TransformerModel::ExpandHidden(const ForwardBatch& batch, ReadHidden read) {
  if (!config_.swiftkv()) {
    return Model::ExpandHidden(batch, read);
  }
  if (batch.positions.size() > static_cast<size_t>(options_.max_step_rows)) {
    return absl::InvalidArgumentError("hidden states: too many rows");
  }
  arrays_.Clear();
  all_rows_.SetAll(batch, 0, arrays_);
  BATON_RETURN_IF_ERROR(batch.kv->Prepare(all_rows_.tiles(), arrays_));
  BATON_RETURN_IF_ERROR(arrays_.Upload());
  void* const hidden = activations_.residual.data();
  BATON_RETURN_IF_ERROR(read(hidden));
  BATON_RETURN_IF_ERROR(
      all_rows_.ComputeAngles(ops_, exec_, weights_.inverse_frequencies.as<float>()));
  for (const kv::KvRows& tile : all_rows_.tiles()) {
    BATON_RETURN_IF_ERROR(FanOutNormed(*batch.kv, Row(hidden, tile.row_begin), tile));
  }
  return absl::OkStatus();
}

absl::Status TransformerModel::FanOutNormed(kv::StepKv& kv,
                                            const void* normed,
                                            const kv::KvRows& tile) {
  const FanOutWeights& weights = weights_.fan_out;
  const int32_t full_layers = config_.num_key_value_layers;
  const int32_t groups = config_.num_kv_cache_layers() - full_layers;
  const int64_t kv_width = int64_t{config_.num_kv_heads} * config_.head_dim;
  const int64_t stride = weights.kv.matrix.out_features;
  void* keys = activations_.projected.data();  // K of all groups, then V of all groups
  void* values = Behind(keys, groups * kv_width);

  BATON_RETURN_IF_ERROR(Multiply(normed, weights.kv, tile.rows, keys));
  for (size_t group = 0; group < weights.k_norms.size(); ++group) {
    BATON_RETURN_IF_ERROR(HeadNorm(Behind(keys, static_cast<int64_t>(group) * kv_width),
                                   stride,
                                   weights.k_norms[group],
                                   tile.rows,
                                   config_.num_kv_heads));
  }
  BATON_RETURN_IF_ERROR(
      Rotate(keys, stride, int64_t{groups} * config_.num_kv_heads, all_rows_, tile));
  for (int32_t group = 0; group < groups; ++group) {
    BATON_RETURN_IF_ERROR(kv.Write(tile,
                                   {.kv_layer = full_layers + group,
                                    .k = Behind(keys, group * kv_width),
                                    .v = Behind(values, group * kv_width),
                                    .stride = stride}));
  }
  return absl::OkStatus();
}

}  // namespace baton::model
