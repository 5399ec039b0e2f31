// Memory into which bytes of other processes land.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "kernels/core/shared_blocks.h"

namespace baton::kernels {

// A copy to the host of bytes that landed.
struct LandedRead {
  std::span<std::byte> target;
  const std::byte* source = nullptr;
};

// How threads that are not the executor's reach blocks of a MemorySpace, beside its ops: the caller
// knows that no op looks at these bytes meanwhile. Thread-safe.
class LandingMemory {
 public:
  virtual ~LandingMemory() = default;
  // Whether the host reads this memory like its own.
  virtual bool is_host() const = 0;
  // Copies to `target`, where the bytes are when a Wait that is called later has returned. `source`
  // is the host's and may be changed as soon as this returns, or, if it is of
  // MemorySpace::staging(), once it has been waited for.
  virtual absl::Status Write(std::byte* target, std::span<const std::byte> source) = 0;
  // Maps a block of another process's memory of this kind (SharedBlock::kind). `fd` is borrowed.
  // kUnimplemented where there is no such thing; another error says why it can't be mapped.
  virtual absl::StatusOr<std::unique_ptr<SharedMapping>> Import(int fd, size_t size) = 0;
  // Write from a mapping of Import, or from this memory itself: `source` is left alone until it has
  // been waited for.
  virtual absl::Status Pull(std::byte* target, std::span<const std::byte> source) = 0;
  // Waits for everything that was written or pulled before, by any thread.
  virtual absl::Status Wait() = 0;
  // Waits likewise, then adds up `pieces`, one behind the other (word_sum.h). kInvalidArgument when
  // one is not of whole, aligned words.
  virtual absl::StatusOr<uint64_t> WordSum(std::span<const std::span<const std::byte>> pieces) = 0;
  // Copies bytes that have been waited for, or that an op has written, to the host; all of `reads`
  // take little longer than one.
  virtual absl::Status ReadAll(std::span<const LandedRead> reads) = 0;
  absl::Status Read(std::span<std::byte> target, const std::byte* source) {
    const LandedRead read = {.target = target, .source = source};
    return ReadAll(std::span(&read, 1));
  }
};

// The host's own memory. Lives as long as the process.
LandingMemory& HostLanding();

}  // namespace baton::kernels
