#include "kernels/cuda/runtime/graph_cache.h"

#include <cuda_runtime_api.h>
#include <driver_types.h>

#include <algorithm>

#include "absl/status/status.h"

#include "kernels/core/op_graphs.h"
#include "kernels/cuda/runtime/cuda_status.h"

namespace baton::kernels::cuda {

GraphCache::~GraphCache() {
  for (const Entry& entry : entries_) {
    if (entry.graph != nullptr) {
      cudaGraphExecDestroy(entry.graph);
    }
  }
}

absl::Status GraphCache::Launch(const GatheredOps& ops) {
  Entry* const entry = Find(ops);
  if (entry == nullptr) {
    Remember(ops);
    return ops.Replay();
  }
  if (entry->graph == nullptr) {
    if (absl::Status status = Capture(ops, entry->graph); !status.ok()) {
      return status;
    }
  }
  return ToStatus(cudaGraphLaunch(entry->graph, queue_.stream()), "launch a graph");
}

GraphCache::Entry* GraphCache::Find(const GatheredOps& ops) {
  const auto found = std::find_if(entries_.begin(), entries_.end(), [&](const Entry& entry) {
    return entry.bytes == ops.bytes();
  });
  if (found == entries_.end()) {
    return nullptr;
  }
  entries_.splice(entries_.begin(), entries_, found);
  return &entries_.front();
}

// A graph that is destroyed while it runs is freed when it has run.
void GraphCache::Remember(const GatheredOps& ops) {
  if (entries_.size() == kRemembered) {
    if (entries_.back().graph != nullptr) {
      cudaGraphExecDestroy(entries_.back().graph);
    }
    entries_.pop_back();
  }
  entries_.push_front({.bytes = ops.bytes()});
}

absl::Status GraphCache::Capture(const GatheredOps& ops, cudaGraphExec_t& graph) const {
  absl::Status status =
      ToStatus(cudaStreamBeginCapture(queue_.stream(), cudaStreamCaptureModeThreadLocal),
               "begin to capture a graph");
  if (!status.ok()) {
    return status;
  }
  status = ops.Replay();
  cudaGraph_t captured = nullptr;
  status.Update(ToStatus(cudaStreamEndCapture(queue_.stream(), &captured), "capture a graph"));
  if (status.ok()) {
    status = ToStatus(cudaGraphInstantiate(&graph, captured, 0), "instantiate a graph");
  }
  if (captured != nullptr) {
    cudaGraphDestroy(captured);
  }
  return status;
}

}  // namespace baton::kernels::cuda
