// Shared memory of kernels that need more than a block has unasked.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

namespace baton::kernels::cuda {

// Allows blocks of a kernel `bytes` of dynamic shared memory, and asks for as much of it as a
// multiprocessor can have. Before the kernel is launched, each time: it costs a microsecond.
template <typename Kernel>
cudaError_t AllowShared(Kernel kernel, size_t bytes) {
  cudaError_t error = cudaFuncSetAttribute(
      kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
  if (error == cudaSuccess) {
    error = cudaFuncSetAttribute(
        kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared);
  }
  return error;
}

}  // namespace baton::kernels::cuda
