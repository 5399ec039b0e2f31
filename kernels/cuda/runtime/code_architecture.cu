#include <cuda_runtime.h>

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

#include "kernels/cuda/runtime/code_architecture.h"

namespace baton::kernels::cuda {
namespace {

// Compiled for the architectures that all kernels are compiled for.
__global__ void EmptyKernel() {}

}  // namespace

absl::StatusOr<int32_t> CodeArchitecture() {
  cudaFuncAttributes attributes;
  if (const cudaError_t error = cudaFuncGetAttributes(&attributes, EmptyKernel);
      error != cudaSuccess) {
    cudaGetLastError();  // it is told here; later launches did not fail
    return absl::FailedPreconditionError(absl::StrCat(
        "this build has code for ", BATON_CUDA_ARCHITECTURES, ": ", cudaGetErrorString(error)));
  }
  return attributes.ptxVersion * 10;
}

}  // namespace baton::kernels::cuda
