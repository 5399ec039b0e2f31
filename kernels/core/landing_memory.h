// Memory into which bytes of other processes land.
#pragma once

#include <cstddef>
#include <span>

#include "absl/status/status.h"

namespace baton::kernels {

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
  // Waits for everything that was written before, by any thread.
  virtual absl::Status Wait() = 0;
  // Copies bytes that have been waited for, or that an op has written, to the host.
  virtual absl::Status Read(std::span<std::byte> target, const std::byte* source) = 0;
};

// The host's own memory. Lives as long as the process.
LandingMemory& HostLanding();

}  // namespace baton::kernels
