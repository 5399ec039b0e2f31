// CUDA graphs of launches that come again.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <list>
#include <span>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace baton::kernels::cuda {

// Launches on a stream that were done once before under the same key are captured as a graph, and
// launched as that from then on: a launch of its own takes the host about 4 us, a graph of any
// number of them 10. Capturing takes about as long as launching, instantiating some 3 us for each
// launch. Owned by the executor thread.
class LaunchCache {
 public:
  // Keys that are remembered, the latest.
  static constexpr size_t kRemembered = 16;

  // `stream` is borrowed.
  explicit LaunchCache(cudaStream_t stream) : stream_(stream) {}
  ~LaunchCache();
  LaunchCache(const LaunchCache&) = delete;
  LaunchCache& operator=(const LaunchCache&) = delete;

  // Does what `launch` does, which is to launch on the stream what depends on nothing but `key`.
  // While someone else captures the stream, `launch` is called and nothing remembered.
  absl::Status Launch(std::span<const std::byte> key, absl::FunctionRef<absl::Status()> launch);

 private:
  struct Entry {
    std::vector<std::byte> key;
    cudaGraphExec_t graph = nullptr;
  };

  // The entry of the key, now the first; null when it is new.
  Entry* Find(std::span<const std::byte> key);
  void Remember(std::span<const std::byte> key);
  absl::StatusOr<cudaGraphExec_t> Capture(absl::FunctionRef<absl::Status()> launch) const;

  const cudaStream_t stream_;
  std::list<Entry> entries_;  // latest first
};

}  // namespace baton::kernels::cuda
