// CUDA graphs of the steps that come again.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <list>
#include <vector>

#include "absl/status/status.h"

#include "kernels/core/op_graphs.h"
#include "kernels/cuda/runtime/device_queue.h"

namespace baton::kernels::cuda {

// Ops that were launched once before with the same parameters are captured as a graph, and launched
// as that from then on. Steps that only decode are such: what changes between them lies behind
// addresses that stay (docs/adr/0010-ops-of-a-device.md). Capturing takes about as long as one
// launch of the ops, instantiating about a millisecond; a graph is launched in 10 us
// (docs/kernels/dense.md).
class GraphCache final : public OpGraphs {
 public:
  // Sets of ops that are remembered, the latest. A running batch needs few: each format's steps
  // with and without scores; others come and go with sequences.
  static constexpr size_t kRemembered = 16;

  // `queue`, on which the ops launch, is borrowed.
  explicit GraphCache(const DeviceQueue& queue) : queue_(queue) {}
  ~GraphCache() override;

 private:
  struct Entry {
    std::vector<std::byte> bytes;  // GatheredOps::bytes
    cudaGraphExec_t graph = nullptr;
  };

  absl::Status Launch(const GatheredOps& ops) override;
  // The entry of the ops, now the first; null when they are new.
  Entry* Find(const GatheredOps& ops);
  void Remember(const GatheredOps& ops);
  absl::Status Capture(const GatheredOps& ops, cudaGraphExec_t& graph) const;

  const DeviceQueue& queue_;
  std::list<Entry> entries_;  // latest first
};

}  // namespace baton::kernels::cuda
