// Links between devices over NCCL.
#pragma once

#include <memory>

#include "absl/status/statusor.h"

#include "kernels/core/device_link.h"
#include "kernels/cuda/nccl/nccl_link_options.h"

namespace baton::kernels::cuda {

// Of the current device; a link is a communicator of two ranks with few thread blocks
// (performance.md 2), which never blocks the host and is aborted at its end. The library's file is
// that of the environment variable BATON_NCCL, if set. Fixes the size from which malloc maps memory
// of its own in this process. LoadNccl's errors; kUnimplemented in a build without NCCL's header,
// and where slots are to be registered by an NCCL that can't.
absl::StatusOr<std::unique_ptr<DeviceLinks>> MakeNcclLinks(const NcclLinkOptions& options = {});

}  // namespace baton::kernels::cuda
