#include "kernels/cuda/runtime/launch_cache.h"

#include <cuda_runtime_api.h>
#include <driver_types.h>

#include <algorithm>
#include <cstddef>
#include <span>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "kernels/cuda/runtime/cuda_status.h"

namespace baton::kernels::cuda {
namespace {

bool IsCaptured(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  return cudaStreamIsCapturing(stream, &status) == cudaSuccess &&
         status != cudaStreamCaptureStatusNone;
}

}  // namespace

LaunchCache::~LaunchCache() {
  for (const Entry& entry : entries_) {
    if (entry.graph != nullptr) {
      cudaGraphExecDestroy(entry.graph);
    }
  }
}

absl::Status LaunchCache::Launch(std::span<const std::byte> key,
                                 absl::FunctionRef<absl::Status()> launch) {
  if (IsCaptured(stream_)) {
    return launch();
  }
  Entry* const entry = Find(key);
  if (entry == nullptr) {
    Remember(key);
    return launch();
  }
  if (entry->graph == nullptr) {
    const absl::StatusOr<cudaGraphExec_t> graph = Capture(launch);
    if (!graph.ok()) {
      return graph.status();
    }
    entry->graph = *graph;
  }
  return ToStatus(cudaGraphLaunch(entry->graph, stream_), "launch a graph");
}

LaunchCache::Entry* LaunchCache::Find(std::span<const std::byte> key) {
  const auto found = std::find_if(entries_.begin(), entries_.end(), [&](const Entry& entry) {
    return std::ranges::equal(entry.key, key);
  });
  if (found == entries_.end()) {
    return nullptr;
  }
  entries_.splice(entries_.begin(), entries_, found);
  return &entries_.front();
}

// A graph that is destroyed while it runs is freed when it has run.
void LaunchCache::Remember(std::span<const std::byte> key) {
  if (entries_.size() == kRemembered) {
    if (entries_.back().graph != nullptr) {
      cudaGraphExecDestroy(entries_.back().graph);
    }
    entries_.pop_back();
  }
  entries_.push_front({.key = {key.begin(), key.end()}});
}

absl::StatusOr<cudaGraphExec_t> LaunchCache::Capture(
    absl::FunctionRef<absl::Status()> launch) const {
  absl::Status status = ToStatus(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal),
                                 "begin to capture a graph");
  if (!status.ok()) {
    return status;
  }
  status = launch();
  cudaGraph_t captured = nullptr;
  status.Update(ToStatus(cudaStreamEndCapture(stream_, &captured), "capture a graph"));
  cudaGraphExec_t graph = nullptr;
  if (status.ok()) {
    status = ToStatus(cudaGraphInstantiate(&graph, captured, 0), "instantiate a graph");
  }
  if (captured != nullptr) {
    cudaGraphDestroy(captured);
  }
  if (!status.ok()) {
    return status;
  }
  return graph;
}

}  // namespace baton::kernels::cuda
