// Bytes of other processes on their way to the device, on a stream of their own.
#pragma once

#include <driver_types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"

#include "kernels/core/landing_memory.h"
#include "kernels/core/shared_blocks.h"
#include "kernels/cuda/runtime/word_adder.h"

namespace baton::kernels::cuda {

// CUDA takes a source that is not pinned into buffers of its own before Write returns. Sums go
// before what steps compute: they are short, and a transfer waits for them. Reads have a stream of
// their own, so that what lands does not wait for them. Of the
// device that is current where it is made; others threads' calls make it theirs.
class LandingStream final : public LandingMemory {
 public:
  static absl::StatusOr<std::unique_ptr<LandingStream>> Create();
  // Waits for what runs on it.
  ~LandingStream() override;

  bool is_host() const override { return false; }
  absl::Status Write(std::byte* target, std::span<const std::byte> source) override;
  absl::StatusOr<std::unique_ptr<SharedMapping>> Import(int fd, size_t size) override;
  absl::Status Pull(std::byte* target, std::span<const std::byte> source) override;
  absl::Status Wait() override;
  absl::StatusOr<uint64_t> WordSum(std::span<const std::span<const std::byte>> pieces) override;
  absl::Status Read(std::span<std::byte> target, const std::byte* source) override;

 private:
  LandingStream() = default;

  absl::Status MakeCurrent() const;
  absl::Status Copy(std::byte* target,
                    std::span<const std::byte> source,
                    cudaMemcpyKind kind) const;

  // Set once, by Create.
  int device_ = 0;
  cudaStream_t stream_ = nullptr;
  cudaStream_t reads_ = nullptr;
  absl::Mutex mutex_;
  std::unique_ptr<WordAdder> adder_ ABSL_PT_GUARDED_BY(mutex_);
};

}  // namespace baton::kernels::cuda
