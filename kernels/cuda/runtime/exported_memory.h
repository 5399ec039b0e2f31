// Memory of the device that other processes of the machine may read in place.
#pragma once

#include <cstddef>
#include <memory>

#include "absl/status/statusor.h"

#include "kernels/core/memory.h"
#include "kernels/core/shared_blocks.h"

namespace baton::kernels::cuda {

// A zeroed block of the current device that FindShared knows, in whole pages of 2 MiB, by CUDA's
// virtual memory management: its descriptor stands for the memory, which lives as long as anybody
// has it mapped. kResourceExhausted when the device has no such block; kUnimplemented when driver
// or device export none.
absl::StatusOr<Memory> AllocateExported(size_t bytes);

// Maps a block that another process got from AllocateExported, of the current device or one that it
// reaches over NVLink or PCIe, for reading by the current device. `fd` is borrowed. kUnavailable
// when it can't be reached, kInvalidArgument when `fd` is no such block.
absl::StatusOr<std::unique_ptr<SharedMapping>> ImportExported(int fd, size_t bytes);

}  // namespace baton::kernels::cuda
