// CUDA's errors as statuses.
#pragma once

#include <cuda_runtime_api.h>

#include <string_view>

#include "absl/status/status.h"

namespace baton::kernels::cuda {

// OK for cudaSuccess. kResourceExhausted for memory that is not there, and CUDA's last error is
// cleared: the device works on. kInternal for the rest, which the device does not get over: the
// process has to end. `what` says what was tried.
absl::Status ToStatus(cudaError_t error, std::string_view what);

}  // namespace baton::kernels::cuda
