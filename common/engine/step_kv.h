// The KV of an engine step: each sequence's rows go to where its KV is, finished layers to sinks.
#pragma once

#include <atomic>
#include <cstdint>

#include "absl/status/status.h"

#include "common/engine/executor_context.h"
#include "common/engine/kv_sink.h"
#include "common/engine/ready_kv.h"
#include "common/engine/staged_copies.h"
#include "common/engine/step.h"
#include "common/kv/codec/packed_step_kv.h"
#include "common/kv/codec/step_kv.h"

namespace baton::engine {

// Dense pages and hidden states ship when they are final, encoded layers as soon as they are
// encoded; those of a device that are copied to the host first once the step is over, which is
// Executor's to see to. Made for one step; executor thread. Everything is borrowed.
class EngineStepKv final : public kv::PackedStepKv {
 public:
  // `progress` rises with every tile that has attended and all layers that are written.
  EngineStepKv(const Step& step,
               const ExecutorContext& context,
               const StepLayers& layers,
               StagedCopies& staged,
               std::atomic<int64_t>& progress);

  absl::Status Attend(const kv::KvRows& rows, const kv::KvQueries& queries) override;
  // Hands the pages that became final to their sinks.
  absl::Status LayersWritten(int32_t layer_begin, int32_t layer_end) override;

 protected:
  // Adds its time to the sequence's encode_time.
  absl::Status EncodeLayer(int32_t sequence, int32_t kv_layer) override;
  absl::Status OnLayerEncoded(int32_t sequence, int32_t kv_layer) override;

 private:
  // To the sequence's sink, now or by way of host memory.
  absl::Status Ship(const StepSequence& rows, ReadyKv ready);

  const Step& step_;
  const ExecutorContext& context_;
  const StepLayers layers_;
  StagedCopies& staged_;
  std::atomic<int64_t>& progress_;
};

}  // namespace baton::engine
