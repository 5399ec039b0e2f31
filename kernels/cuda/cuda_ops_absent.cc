// Stands in for the CUDA back end in a build without CUDA.
#include "kernels/cuda/cuda_ops.h"

namespace baton::kernels {
const OpTable* CudaOps() { return nullptr; }
}  // namespace baton::kernels
