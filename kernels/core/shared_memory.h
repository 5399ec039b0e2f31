// Host memory that other processes of the machine may read in place.
#pragma once

#include <cstddef>
#include <memory>

#include "absl/status/statusor.h"

#include "kernels/core/memory.h"
#include "kernels/core/shared_blocks.h"

namespace baton::kernels {

// Like HostMemory(), in blocks that FindShared knows: anonymous files (memfd) that can't shrink, so
// that who maps one never meets its end, and whose descriptors are read-only. For few, large
// blocks: each takes two descriptors and whole pages. Lives as long as the process; thread-safe.
MemorySpace& SharedHostMemory();

// Maps a block of another process's SharedHostMemory(). `fd` is borrowed. kInvalidArgument when it
// is not a sealed anonymous file of at least `size` bytes; kResourceExhausted when it can't be
// mapped.
absl::StatusOr<std::unique_ptr<SharedMapping>> MapShared(int fd, size_t size);

}  // namespace baton::kernels
