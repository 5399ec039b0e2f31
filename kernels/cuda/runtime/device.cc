#include "kernels/cuda/runtime/device.h"

#include <cuda_runtime_api.h>
#include <driver_types.h>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

#include "kernels/cuda/runtime/cuda_status.h"

namespace baton::kernels::cuda {

absl::StatusOr<Device> CurrentDevice() {
  int device = 0;
  cudaDeviceProp properties;
  if (const cudaError_t error = cudaGetDevice(&device); error != cudaSuccess) {
    return absl::FailedPreconditionError(
        absl::StrCat("no CUDA device: ", cudaGetErrorString(error)));
  }
  if (const cudaError_t error = cudaGetDeviceProperties(&properties, device);
      error != cudaSuccess) {
    return ToStatus(error, "read the device's properties");
  }
  if (properties.major != 9 || properties.minor != 0) {
    return absl::FailedPreconditionError(absl::StrCat("device ",
                                                      properties.name,
                                                      " has compute capability ",
                                                      properties.major,
                                                      ".",
                                                      properties.minor,
                                                      "; this build has code for 9.0"));
  }
  return Device{.multiprocessors = properties.multiProcessorCount};
}

}  // namespace baton::kernels::cuda
