#include <cuda_runtime.h>

#include <cstdint>

#include "absl/status/status.h"

#include "kernels/cuda/bf16.cuh"
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/row_grid.cuh"
#include "kernels/cuda/runtime/cuda_status.h"
#include "kernels/cuda/runtime/device_queue.h"
#include "kernels/cuda/silu.cuh"
#include "kernels/ops/validate.h"

namespace baton::kernels::cuda {
namespace {

template <int kWidth>
__global__ void SiluMulKernel(const SiluMulParams params, uint32_t pieces) {
  LaunchDependents();
  const int64_t row = GridRow(pieces);
  const int64_t i = GridUnit(pieces) * kWidth;
  if (i >= params.dim) {
    return;
  }
  const uint16_t* gates =
      static_cast<const uint16_t*>(params.gate_up) + row * params.gate_up_stride;
  float gate[kWidth];
  float up[kWidth];
  LoadBf16(gates + i, gate);
  LoadBf16(gates + params.dim + i, up);
#pragma unroll
  for (int j = 0; j < kWidth; ++j) {
    up[j] *= Silu(gate[j]);
  }
  StoreBf16(static_cast<uint16_t*>(params.out) + row * params.out_stride + i, up);
}

}  // namespace

absl::Status SiluMul(const ExecContext& context, const SiluMulParams& params) {
  if (absl::Status status = Validate(params); !status.ok() || params.rows == 0 || params.dim == 0) {
    return status;
  }
  const cudaStream_t stream = context.queue->stream();
  if (FitsVectors({params.gate_up, params.out},
                  {params.gate_up_stride, params.out_stride, params.dim})) {
    const RowGrid grid(params.rows, params.dim / kVectorWidth);
    SiluMulKernel<kVectorWidth><<<grid.blocks, grid.threads, 0, stream>>>(params, grid.pieces);
  } else {
    const RowGrid grid(params.rows, params.dim);
    SiluMulKernel<1><<<grid.blocks, grid.threads, 0, stream>>>(params, grid.pieces);
  }
  return ToStatus(cudaGetLastError(), "silu_mul");
}

}  // namespace baton::kernels::cuda
