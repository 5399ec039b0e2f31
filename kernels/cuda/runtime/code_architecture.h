// Which of the build's device code runs on a device.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"

namespace baton::kernels::cuda {

// The architecture that the code for the current device was compiled for, as __CUDA_ARCH__ has it:
// 900 for Hopper's, also of a newer device that runs it. kFailedPrecondition where none is for it.
absl::StatusOr<int32_t> CodeArchitecture();

}  // namespace baton::kernels::cuda
