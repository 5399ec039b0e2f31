// Decode rows over sequences in format `shadowkv`.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "common/kv/codec/shadowkv/shadowkv_call.h"
#include "common/kv/codec/step_kv.h"
#include "kernels/core/step_arrays.h"
#include "kernels/ops/shadowkv_params.h"
#include "tests/gpu/bench/device_arena.h"
#include "tests/gpu/bench/model_loaded.h"
#include "tests/gpu/bench/shadowkv_load.h"
#include "tests/gpu/bench/shadowkv_pool.h"

namespace baton::model {

// Sequences of a ShadowKvPool, one row each, that grow by a token in every step: append, selection
// and attention, in every stored layer. Descriptors are made for every step and brought to the
// device as the engine does it. Only on a device. Not thread-safe.
class ModelShadowKvKv final : public kv::StepKv {
 public:
  // Fills a pool of the model's layers; waits for the queue. Borrows the model. Positions are those
  // of load.max_generated tokens behind the prompt; a sequence may begin with any of them.
  // kResourceExhausted when the device lacks the memory.
  static absl::StatusOr<std::unique_ptr<ModelShadowKvKv>> Create(
      const LoadedModel& loaded, const kernels::cuda::ShadowKvLoad& load);
  // Memory of one sequence in all layers: prompt sections, tails and caches.
  static int64_t SequenceBytes(const kernels::cuda::ShadowKvLoad& load);
  // Of values apart, in the host's memory.
  static int64_t HostSequenceBytes(const kernels::cuda::ShadowKvLoad& load);

  // From the next step on, attention is over chunks drawn beforehand rather than those that are
  // selected, which is done nevertheless: of the chunks of a step, the same in all layers, each
  // head has `share` in its cache (ShadowKvChunkLists) from the second step on.
  absl::Status ForceHits(double share);
  // Bytes that selection and attention of one layer read at least, with hits forced.
  double read_bytes() const;
  // Of all layers and sequences since the beginning; waits for the queue.
  absl::StatusOr<kernels::ShadowKvCounters> Counters() const;

  absl::Status Prepare(std::span<const kv::KvRows> tiles, kernels::StepArrays& arrays) override;
  absl::Status Write(const kv::KvRows& rows, const kv::KvEntries& entries) override;
  absl::Status Attend(const kv::KvRows& rows, const kv::KvQueries& queries) override;
  absl::Status LayersWritten(int32_t /*layer_begin*/, int32_t /*layer_end*/) override {
    return absl::OkStatus();
  }
  absl::Status LayerAttended(int32_t /*kv_layer*/) override { return absl::OkStatus(); }

 private:
  ModelShadowKvKv(const LoadedModel& loaded, const kernels::cuda::ShadowKvLoad& load)
      : loaded_(loaded), load_(load) {}

  absl::Status Select(const kv::KvQueries& queries) const;
  // The chunks that the step attends.
  const int32_t* ChunkIds() const;
  const kernels::ShadowKvSequence* OpSequences(int32_t kv_layer) const {
    return op_sequences_ + int64_t{kv_layer} * load_.rows;
  }

  const LoadedModel& loaded_;
  const kernels::cuda::ShadowKvLoad load_;
  kernels::cuda::ShadowKvPool pool_;
  kernels::cuda::DeviceArena arena_;
  int32_t* selected_ids_ = nullptr;  // [rows][kv_heads][budget chunks]
  // Forced hits: ids for one layer, which all use, and what follows from them.
  kernels::cuda::DeviceArena forced_arena_;
  const int32_t* forced_ids_ = nullptr;  // ShadowKvChunkLists::ids; null: none are forced
  int64_t hits_ = 0;                     // chunks of a head
  double missed_chunks_ = 0.0;           // ShadowKvChunkLists::missed_chunks
  // Of a step.
  int32_t step_ = 0;
  kv::ShadowKvCallSizes sizes_;
  std::vector<kernels::ShadowKvSequence> sequences_;  // [layers][rows]
  const kernels::ShadowKvSequence* op_sequences_ = nullptr;
};

}  // namespace baton::model
