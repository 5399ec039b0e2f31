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
#include "kernels/core/memory.h"
#include "kernels/core/shared_blocks.h"
#include "kernels/cuda/runtime/word_adder.h"

namespace baton::kernels::cuda {

// CUDA takes a source that is not pinned into buffers of its own before Write returns. Sums and
// reads go before what steps compute: they are short, and a transfer waits for them. Reads have a
// stream of their own, so that what lands does not wait for them, and go through pinned memory, to
// which a kernel brings all of them: a copy to other memory is waited for inside of CUDA, each by
// itself. Of the device that is current where it is made; other threads' calls make it theirs.
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
  absl::Status ReadAll(std::span<const LandedRead> reads) override;

 private:
  // Of what ReadAll takes at once.
  static constexpr size_t kReadBytes = size_t{1} << 18;

  LandingStream() = default;

  absl::Status Copy(std::byte* target,
                    std::span<const std::byte> source,
                    cudaMemcpyKind kind) const;
  // Of no more bytes than read_ has, each rounded up.
  absl::Status ReadParts(std::span<const LandedRead> parts)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(read_mutex_);

  // Set once, by Create.
  int device_ = 0;
  cudaStream_t stream_ = nullptr;
  cudaStream_t reads_ = nullptr;
  absl::Mutex mutex_;
  std::unique_ptr<WordAdder> adder_ ABSL_PT_GUARDED_BY(mutex_);
  absl::Mutex read_mutex_;
  Memory read_ ABSL_GUARDED_BY(read_mutex_);  // pinned, of kReadBytes
};

}  // namespace baton::kernels::cuda
