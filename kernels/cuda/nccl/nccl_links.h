// Links between devices over NCCL.
#pragma once

#include <memory>

#include "absl/status/statusor.h"

#include "kernels/core/device_link.h"

namespace baton::kernels::cuda {

// Of the current device; a link is a communicator of two ranks with few thread blocks
// (performance.md 2), which never blocks the host and is aborted at its end. The library's file is
// that of the environment variable BATON_NCCL, if set. Fixes the size from which malloc maps memory
// of its own in this process. LoadNccl's errors; kUnimplemented in a build without NCCL's header.
absl::StatusOr<std::unique_ptr<DeviceLinks>> MakeNcclLinks();

}  // namespace baton::kernels::cuda
