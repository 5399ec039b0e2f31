// Bytes of other processes on their way to the device, on a stream of their own.
#pragma once

#include <driver_types.h>

#include <cstddef>
#include <memory>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "kernels/core/landing_memory.h"

namespace baton::kernels::cuda {

// CUDA takes a source that is not pinned into buffers of its own before Write returns. Of the
// device that is current where it is made; others threads' calls make it theirs.
class LandingStream final : public LandingMemory {
 public:
  static absl::StatusOr<std::unique_ptr<LandingStream>> Create();
  // Waits for what runs on it.
  ~LandingStream() override;

  bool is_host() const override { return false; }
  absl::Status Write(std::byte* target, std::span<const std::byte> source) override;
  absl::Status Wait() override;
  absl::Status Read(std::span<std::byte> target, const std::byte* source) override;

 private:
  LandingStream(int device, cudaStream_t stream) : device_(device), stream_(stream) {}

  absl::Status Copy(void* target, const void* source, size_t bytes, cudaMemcpyKind kind);

  const int device_;
  const cudaStream_t stream_;
};

}  // namespace baton::kernels::cuda
