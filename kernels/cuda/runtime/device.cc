#include "kernels/cuda/runtime/device.h"

#include <cuda_runtime_api.h>
#include <driver_types.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

#include "kernels/cuda/device_code.h"
#include "kernels/cuda/runtime/code_architecture.h"
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
  const std::string name = absl::StrCat("device ",
                                        properties.name,
                                        " of compute capability ",
                                        properties.major,
                                        ".",
                                        properties.minor);
  const absl::StatusOr<int32_t> architecture = CodeArchitecture();
  if (!architecture.ok()) {
    return absl::FailedPreconditionError(absl::StrCat(name, ": ", architecture.status().message()));
  }
  const Device current = {.multiprocessors = properties.multiProcessorCount,
                          .block_shared_bytes = properties.sharedMemPerBlockOptin,
                          .has_hopper_code = *architecture >= 900,
                          .multiplies_by_warpgroups = *architecture == 900};
  const size_t needed = RingBlockBytes(current.has_hopper_code);
  if (current.block_shared_bytes < needed) {
    return absl::FailedPreconditionError(absl::StrCat(name,
                                                      ": a block may have ",
                                                      current.block_shared_bytes,
                                                      " bytes of shared memory but the code for ",
                                                      *architecture / 10,
                                                      " needs ",
                                                      needed));
  }
  return current;
}

absl::Status MakeCurrent(int device) {
  return ToStatus(cudaSetDevice(device), "choose the device");
}

}  // namespace baton::kernels::cuda
