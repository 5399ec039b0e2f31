// The forward pass of every supported family.
#pragma once

#include <cstdint>
#include <vector>

#include "common/model/activations.h"
#include "common/model/model.h"
#include "common/model/row_set.h"
#include "common/model/weights.h"

namespace baton::model {

// Plain model: every row through every layer. SwiftKV model (swiftkv.md 1.2): every row through
// layers 0 .. S-1, then one fan-out to the keys and values of all upper layers, then only the
// survivors through layers S .. L-1. Ownership and threads: model.h.
class TransformerModel final : public Model {
 public:
  TransformerModel(const checkpoint::ModelConfig& config,
                   uint64_t fingerprint,
                   const kernels::OpTable& ops,
                   const kernels::ExecContext& exec,
                   const ModelOptions& options,
                   ModelWeights weights);

  const checkpoint::ModelConfig& config() const override { return config_; }
  KvShape kv_shape() const override;
  uint64_t fingerprint() const override { return fingerprint_; }
  std::span<const float> rope_inverse_frequencies() const override { return inverse_frequencies_; }
  const float* key_bias(int32_t kv_layer) const override;
  absl::Status Forward(const ForwardBatch& batch, std::span<float> logits) override;
  absl::Status ExpandHidden(const ForwardBatch& batch, std::span<const float> hidden) override;

 private:
  absl::Status Embed(const ForwardBatch& batch);
  // Layers [layer_begin, layer_end) of `x`, the residual stream of `rows`.
  absl::Status RunLayers(
      const ForwardBatch& batch, int32_t layer_begin, int32_t layer_end, float* x, RowSet& rows);
  absl::Status Attention(
      kv::StepKv& kv, int32_t layer, float* x, RowSet& rows, const RowTile& tile);
  absl::Status Mlp(int32_t layer, float* x, const RowTile& tile);
  // The stored layer that layer `layer` reads.
  int32_t KvLayer(int32_t layer) const;
  // Whether the layer after `layer` reads another stored layer.
  bool IsLastReader(int32_t layer) const;
  // SwiftKV, from the residual stream that enters layer S on.
  absl::Status ForwardUpper(const ForwardBatch& batch,
                            const float* residual,
                            std::span<float> logits);
  // Writes the keys and values of all upper layers from that residual stream.
  absl::Status FanOut(kv::StepKv& kv, const float* x, RowSet& rows);
  absl::Status FanOutTile(kv::StepKv& kv, const float* x, RowSet& rows, const RowTile& tile);
  // The part behind the norm.
  absl::Status FanOutNormed(kv::StepKv& kv, const float* normed, RowSet& rows, const RowTile& tile);
  // Logits of the rows of `x` (a residual stream) that `row_index` lists.
  absl::Status Logits(const float* x, std::span<const int32_t> row_index, std::span<float> logits);
  absl::Status Norm(const float* x, const kernels::Buffer& weight, int64_t rows, float* out);
  absl::Status HeadNorm(
      float* x, int64_t stride, const kernels::Buffer& weight, int64_t rows, int64_t heads);
  absl::Status Multiply(
      const float* x, const Linear& linear, int64_t rows, float* out, bool accumulate);
  absl::Status ReportFinalHidden(const ForwardBatch& batch, const float* x, int32_t rows);

  checkpoint::ModelConfig config_;
  uint64_t fingerprint_;
  const kernels::OpTable& ops_;
  kernels::ExecContext exec_;
  ModelOptions options_;
  ModelWeights weights_;
  Activations activations_;
  std::vector<float> inverse_frequencies_;
  RowSet all_rows_;
  RowSet survivor_rows_;
  std::vector<int32_t> logit_index_;
};

}  // namespace baton::model
