// A model that computes nothing: its steps take time.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

#include "common/base/clock.h"
#include "common/kv/codec/step_kv.h"
#include "common/model/forward.h"
#include "common/model/model.h"
#include "common/model/row_set.h"
#include "common/model/simulation.h"
#include "kernels/core/exec_context.h"
#include "kernels/core/memory.h"
#include "kernels/core/step_arrays.h"
#include "kernels/ops/op_table.h"

namespace baton::model {

// What a simulated model is made of. Pointers are borrowed and must outlive it.
struct SimulatedContext {
  checkpoint::ModelConfig config;
  uint64_t fingerprint = 0;
  const kernels::OpTable* ops = nullptr;
  kernels::ExecContext exec;  // of a back end on the host
  ModelOptions options;
  Simulation simulation;
  const Clock* clock = nullptr;
};

// Its keys and values have the shape of the real model's, and noise in them: they are written,
// encoded and handed over like those. Nothing attends to them, and there are no logits. A step
// ends when its simulated time is over, or its KV is written if that takes longer; a step with
// prompt rows writes its layers one after another through that time. A sequence with one row in a
// step decodes, one with more is in its prompt. Ownership and threads: model.h.
class SimulatedModel final : public Model {
 public:
  // kUnimplemented for a back end that is not on the host.
  static absl::StatusOr<std::unique_ptr<Model>> Create(SimulatedContext context);

  const checkpoint::ModelConfig& config() const override { return config_; }
  KvShape kv_shape() const override;
  uint64_t fingerprint() const override { return fingerprint_; }
  std::span<const float> rope_inverse_frequencies() const override { return inverse_frequencies_; }
  bool has_logits() const override { return false; }
  absl::Status Forward(const ForwardBatch& batch, std::span<float> logits) override;
  // Takes the time of writing the keys and values, and no simulated time.
  absl::Status ExpandHidden(const ForwardBatch& batch, ReadHidden read) override;

 private:
  // When the layers of a step are written.
  struct Pace {
    absl::Time start;
    absl::Duration per_layer;
  };

  SimulatedModel(SimulatedContext context, RowSet rows, kernels::Memory noise);

  absl::Status Prepare(const ForwardBatch& batch);
  // Writes stored layers [layer_begin, layer_end).
  absl::Status WriteLayers(kv::StepKv& kv, int32_t layer_begin, int32_t layer_end);
  absl::Status WriteHidden(kv::StepKv& kv);
  absl::Status RunFullLayers(kv::StepKv& kv, const Pace& pace);
  absl::Status RunUpperLayers(const ForwardBatch& batch, const Pace& pace);
  void WaitUntil(absl::Time time);

  const checkpoint::ModelConfig config_;
  const uint64_t fingerprint_;
  const ModelOptions options_;
  const Simulation simulation_;
  const Clock& clock_;
  const std::vector<float> inverse_frequencies_;
  RowSet rows_;
  kernels::StepArrays arrays_;
  kernels::Memory noise_;  // activations of a tile: [rows][noise_width_]
  int64_t noise_width_;
  absl::Mutex mutex_;  // for the clock alone
  absl::CondVar never_;
};

}  // namespace baton::model
