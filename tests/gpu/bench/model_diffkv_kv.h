// Decode rows over pages of format `diffkv`.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "common/kv/codec/step_kv.h"
#include "kernels/core/step_arrays.h"
#include "kernels/kv_format/unobserved_range.h"
#include "kernels/ops/diffkv_params.h"
#include "tests/gpu/bench/device_arena.h"
#include "tests/gpu/bench/diffkv_load.h"
#include "tests/gpu/bench/diffkv_pool.h"
#include "tests/gpu/bench/model_loaded.h"

namespace baton::model {

// In which steps the policy looks at a sequence, and in which ones its query adds to the scores of
// its tokens: every n-th, or never with 0. Sequences take turns, as those do that came one after
// another, so that every step has its share of the work. Without `take_pages` new tokens are
// coded where the last step's were; without `append` neither is done.
struct DiffKvTurns {
  int32_t sweep_every = 0;
  int32_t score_every = 0;
  bool take_pages = true;
  bool append = true;
};

// Sequences of a DiffKvPool, one row each, that grow by a token in every step: the policy and pages
// of all layers, then append and attention in every stored layer. Descriptors are made for every
// step and brought to the device as the engine does it. Only on a device. Not thread-safe.
class ModelDiffKvKv final : public kv::StepKv {
 public:
  // Fills a pool of the model's layers; waits for the queue. Borrows the model. load.growth steps
  // have room. kResourceExhausted when the device lacks the memory.
  static absl::StatusOr<std::unique_ptr<ModelDiffKvKv>> Create(
      const LoadedModel& loaded, const kernels::cuda::DiffKvLoad& load);
  // Memory of one sequence in all layers: pages, those that it may come to need included, what
  // names them, and room for a scored query of `heads` heads.
  static int64_t SequenceBytes(const kernels::cuda::DiffKvLoad& load, int64_t heads);

  // From the next step on; none before.
  void SetTurns(const DiffKvTurns& turns) { turns_ = turns; }
  // kInternal if a token of the last step found no room.
  absl::Status CheckAppended() const;

  absl::Status Prepare(std::span<const kv::KvRows> tiles, kernels::StepArrays& arrays) override;
  absl::Status Write(const kv::KvRows& rows, const kv::KvEntries& entries) override;
  absl::Status Attend(const kv::KvRows& rows, const kv::KvQueries& queries) override;
  absl::Status LayersWritten(int32_t /*layer_begin*/, int32_t /*layer_end*/) override {
    return absl::OkStatus();
  }
  absl::Status LayerAttended(int32_t /*kv_layer*/) override { return absl::OkStatus(); }

 private:
  ModelDiffKvKv(const LoadedModel& loaded, const kernels::cuda::DiffKvLoad& load)
      : loaded_(loaded), load_(load) {}

  absl::Status Allocate();
  void AddLayer(int32_t layer, const kv::KvRows& tile);
  // Policy and pages of all layers, at a step's first write.
  absl::Status Begin();
  bool InTurn(int32_t every, int32_t row) const { return every > 0 && (step_ + row) % every == 0; }

  const LoadedModel& loaded_;
  const kernels::cuda::DiffKvLoad load_;
  DiffKvTurns turns_;
  int32_t step_ = 0;  // the one that Prepare was called for last
  kernels::cuda::DiffKvPool pool_;
  kernels::cuda::DeviceArena arena_;
  const kernels::UnobservedRange* unobserved_ = nullptr;
  kernels::DiffKvAction* actions_ = nullptr;  // [layers][rows][kv_heads]
  float* probabilities_ = nullptr;            // [rows][kv_heads][tokens at most]
  float* scratch_ = nullptr;                  // of all rows
  // Of a step, [layers][rows], and where ops read them.
  std::vector<kernels::DiffKvAppendRow> append_rows_;
  std::vector<kernels::DiffKvAttentionRow> attention_rows_;
  const kernels::DiffKvAppendRow* op_append_rows_ = nullptr;
  const kernels::DiffKvAttentionRow* op_attention_rows_ = nullptr;
  bool scored_ = false;  // a row of the step is
  bool sweeps_ = false;  // some row does
  bool begun_ = false;
};

}  // namespace baton::model
