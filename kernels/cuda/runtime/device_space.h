// The device's memory as the engine and the model see it.
#pragma once

#include <driver_types.h>

#include <cstddef>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "kernels/core/buffer.h"
#include "kernels/core/landing_memory.h"
#include "kernels/core/memory.h"
#include "kernels/core/op_graphs.h"
#include "kernels/cuda/runtime/device_queue.h"
#include "kernels/cuda/runtime/exported_memory.h"

namespace baton::kernels::cuda {

// Copies go over the queue's stream, in order with its ops. A source on the host that is not pinned
// is taken into CUDA's own buffers before Upload returns; staging() is pinned. Download makes calls
// of other threads wait as little as its copy takes, however long the work before it does.
class DeviceSpace : public MemorySpace {
 public:
  // `queue` is borrowed, and so are what gathers its ops, null if nothing does, `landing`, null
  // where nothing lands, and `shared`.
  explicit DeviceSpace(const DeviceQueue& queue,
                       OpGraphs* graphs = nullptr,
                       LandingMemory* landing = nullptr,
                       MemorySpace* shared = nullptr)
      : queue_(queue), graphs_(graphs), landing_(landing), shared_(shared) {}

  bool is_host() const override { return false; }
  absl::StatusOr<Memory> Allocate(size_t bytes) override;
  absl::StatusOr<Memory> Adopt(Buffer source) override;
  absl::Status Upload(std::byte* target, const void* source, size_t bytes) override;
  absl::Status Download(void* target, const void* source, size_t bytes) override;
  absl::Status Copy(std::byte* target, const std::byte* source, size_t bytes) override;
  absl::Status Zero(std::byte* target, size_t bytes) override;
  MemorySpace& staging() override;
  MemorySpace* shared() override { return shared_; }
  LandingMemory& landing() override { return *landing_; }

 private:
  // Of what Download takes at once; a step's draws are some KiB.
  static constexpr size_t kDownloadBytes = size_t{1} << 20;

  // Pinned memory that downloads go through, from the first one on.
  absl::Status TakeDownloadBuffer();
  // Launches the ops that were called before a copy.
  absl::Status Flush();
  // Puts a copy on the stream.
  absl::Status Enqueue(void* target, const void* source, size_t bytes, cudaMemcpyKind kind);

  const DeviceQueue& queue_;
  OpGraphs* const graphs_;
  LandingMemory* const landing_;
  MemorySpace* const shared_;
  Memory downloaded_;
};

// The same, whose Allocate gives blocks that other processes may read (exported_memory.h).
class ExportedSpace final : public DeviceSpace {
 public:
  using DeviceSpace::DeviceSpace;

  absl::StatusOr<Memory> Allocate(size_t bytes) override { return AllocateExported(bytes); }
};

}  // namespace baton::kernels::cuda
