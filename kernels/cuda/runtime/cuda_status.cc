#include "kernels/cuda/runtime/cuda_status.h"

#include <cuda_runtime_api.h>
#include <driver_types.h>

#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"

namespace baton::kernels::cuda {

absl::Status ToStatus(cudaError_t error, std::string_view what) {
  if (error == cudaSuccess) {
    return absl::OkStatus();
  }
  const std::string message = absl::StrCat(
      std::string(what), ": ", cudaGetErrorString(error), " (", cudaGetErrorName(error), ")");
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    return absl::ResourceExhaustedError(message);
  }
  return absl::InternalError(message);
}

}  // namespace baton::kernels::cuda
