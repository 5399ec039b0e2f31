// The forward pass of every supported family.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "common/model/activations.h"
#include "common/model/forward.h"
#include "common/model/model.h"
#include "common/model/row_set.h"
#include "common/model/weights.h"
#include "kernels/core/exec_context.h"
#include "kernels/core/memory.h"
#include "kernels/core/step_arrays.h"
#include "kernels/ops/op_table.h"
#include "kernels/ops/params.h"

namespace baton::model {

// What a model is made of besides its weights.
struct TransformerContext {
  checkpoint::ModelConfig config;
  uint64_t fingerprint = 0;
  const kernels::OpTable* ops = nullptr;
  kernels::ExecContext exec;
  ModelOptions options;
};

// Plain model: every row through every layer. SwiftKV model (swiftkv.md 1.2): every row through
// layers 0 .. S-1, then one fan-out to the keys and values of all upper layers, then only the
// survivors through layers S .. L-1. Ownership and threads: model.h.
//
// The host prepares a whole step, then calls op after op without looking at what they do; pointers
// to activations and weights are memory of the back end.
class TransformerModel final : public Model {
 public:
  // kResourceExhausted when the back end lacks memory for activations.
  static absl::StatusOr<std::unique_ptr<Model>> Create(TransformerContext context,
                                                       ModelWeights weights);

  const checkpoint::ModelConfig& config() const override { return config_; }
  KvShape kv_shape() const override;
  uint64_t fingerprint() const override { return fingerprint_; }
  std::span<const float> rope_inverse_frequencies() const override { return inverse_frequencies_; }
  const float* key_bias(int32_t kv_layer) const override;
  absl::Status Forward(const ForwardBatch& batch, std::span<float> logits) override;
  const float* device_logits() const override { return logits_.as<float>(); }
  absl::Status ExpandHidden(const ForwardBatch& batch, ReadHidden read) override;

 private:
  // The arrays of a step where ops read them.
  struct StepInputs {
    const int32_t* token_ids = nullptr;
    const int32_t* survivors = nullptr;
    const int32_t* logit_index = nullptr;  // of the rows that need logits, in the last residual
  };

  TransformerModel(TransformerContext context,
                   ModelWeights weights,
                   Activations activations,
                   RowSet all_rows,
                   RowSet survivor_rows);

  // Cuts the step into tiles and uploads what ops have to be told.
  absl::Status Prepare(const ForwardBatch& batch);
  absl::Status UploadTiles(const ForwardBatch& batch);
  absl::Status Embed(int64_t rows);
  // Layers [layer_begin, layer_end) of `x`, the residual stream of `rows`.
  absl::Status RunLayers(const ForwardBatch& batch,
                         int32_t layer_begin,
                         int32_t layer_end,
                         void* x,
                         const RowSet& rows);
  // Queries of rows of `x`, and in a full layer keys and values, to activations_.projected.
  absl::Status Project(int32_t layer, const void* x, const RowSet& rows, const kv::KvRows& tile);
  absl::Status Attention(
      kv::StepKv& kv, int32_t layer, void* x, const RowSet& rows, const kv::KvRows& tile);
  absl::Status Mlp(int32_t layer, void* x, const kv::KvRows& tile);
  // The stored layer that layer `layer` reads.
  int32_t KvLayer(int32_t layer) const;
  // Whether the layer after `layer` reads another stored layer.
  bool IsLastReader(int32_t layer) const;
  // SwiftKV, from the residual stream that enters layer S on.
  absl::Status ForwardUpper(const ForwardBatch& batch,
                            const void* residual,
                            std::span<float> logits);
  // Writes the keys and values of all upper layers from that residual stream.
  absl::Status FanOut(kv::StepKv& kv, const void* x);
  absl::Status FanOutTile(kv::StepKv& kv, const void* x, const kv::KvRows& tile);
  // The part behind the norm.
  absl::Status FanOutNormed(kv::StepKv& kv, const void* normed, const kv::KvRows& tile);
  // Logits of the rows of `x`, a residual stream, that the step's logit_index lists.
  absl::Status Logits(const void* x, std::span<float> logits);
  absl::Status LogitTile(const void* x, int64_t first_row, int64_t rows, float* out);
  absl::Status Norm(const void* x, const kernels::Memory& weight, int64_t rows, void* out);
  absl::Status HeadNorm(
      void* x, int64_t stride, const kernels::Memory& weight, int64_t rows, int64_t heads);
  absl::Status Rotate(
      void* x, int64_t stride, int64_t heads, const RowSet& rows, const kv::KvRows& tile);
  kernels::OutputRope Rotation(int64_t heads, const RowSet& rows, const kv::KvRows& tile) const;
  // out = x W^T of rows that lie behind one another.
  kernels::MatmulParams Product(const void* x, const Linear& linear, int64_t rows, void* out) const;
  absl::Status Multiply(const void* x, const Linear& linear, int64_t rows, void* out);
  // out += x W^T.
  absl::Status MultiplyAdd(const void* x, const Linear& linear, int64_t rows, void* out);
  // What normalises rows of a residual stream in front of a product.
  kernels::InputNorm NormOf(const kernels::Memory& weight);

  // Calls batch.on_hidden, if there is one, with `x` on the host.
  absl::Status ReportHidden(const ForwardBatch& batch, int32_t layer, const void* x, int64_t rows);
  absl::Status ReportFinalHidden(const ForwardBatch& batch, const void* x, int64_t rows);

  // The element `count` elements behind.
  void* Behind(void* x, int64_t count) const;
  const void* Behind(const void* x, int64_t count) const;
  // Row `row` of a residual stream.
  void* Row(void* x, int64_t row) const { return Behind(x, row * config_.hidden_size); }
  const void* Row(const void* x, int64_t row) const { return Behind(x, row * config_.hidden_size); }

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
  kernels::StepArrays arrays_;
  StepInputs inputs_;
  std::vector<kv::KvRows> tiles_;
  std::vector<int32_t> logit_index_;
  kernels::Memory logits_;  // f32 [max_logit_rows, vocab], where the host can't read what ops write
};

}  // namespace baton::model
