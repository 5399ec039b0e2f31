// Sums of words in the device's memory (kernels/core/word_sum.h).
#pragma once

#include <driver_types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "kernels/core/memory.h"
#include "kernels/cuda/runtime/device_memory.h"

namespace baton::kernels::cuda {

// A block of threads adds up a part of a piece; what parts there are is read from pinned memory.
// Not thread-safe. Of the device that is current where it is made and used.
class WordAdder {
 public:
  static absl::StatusOr<std::unique_ptr<WordAdder>> Create();

  // Behind what was put on the stream; waits for the sum. As LandingMemory::WordSum.
  absl::StatusOr<uint64_t> Add(cudaStream_t stream,
                               std::span<const std::span<const std::byte>> pieces);

 private:
  WordAdder(Memory parts, Memory result, DeviceMemory sum);

  // Adds the first `count` parts to the sum on the device.
  absl::Status Launch(cudaStream_t stream, size_t count) const;

  const Memory parts_;   // pinned
  const Memory result_;  // pinned
  const DeviceMemory sum_;
};

}  // namespace baton::kernels::cuda
