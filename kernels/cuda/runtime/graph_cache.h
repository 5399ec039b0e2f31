// CUDA graphs of the steps that come again.
#pragma once

#include "absl/status/status.h"

#include "kernels/core/op_graphs.h"
#include "kernels/cuda/runtime/device_queue.h"
#include "kernels/cuda/runtime/launch_cache.h"

namespace baton::kernels::cuda {

// Ops that are launched again with the same parameters are launched as a graph. Steps that only
// decode are such: what changes between them lies behind addresses that stay
// (docs/adr/0010-ops-of-a-device.md). A running batch needs few graphs: each format's steps with
// and without scores; others come and go with sequences.
class GraphCache final : public OpGraphs {
 public:
  // `queue`, on which the ops launch, is borrowed.
  explicit GraphCache(const DeviceQueue& queue)
      : queue_(queue), launches_(queue.stream()), shared_launches_(queue.stream()) {}

 private:
  absl::Status Launch(const GatheredOps& ops) override {
    LaunchCache& launches = queue_.shared() ? shared_launches_ : launches_;
    return launches.Launch(ops.bytes(), [&ops] { return ops.Replay(); });
  }

  const DeviceQueue& queue_;
  LaunchCache launches_;
  LaunchCache shared_launches_;  // while the queue is shared, when kernels take less of the device
};

}  // namespace baton::kernels::cuda
