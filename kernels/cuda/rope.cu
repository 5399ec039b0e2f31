#include <cuda_runtime.h>

#include <cstdint>

#include "absl/status/status.h"

#include "kernels/cuda/bf16.cuh"
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/rope_pair.cuh"
#include "kernels/cuda/row_grid.cuh"
#include "kernels/cuda/runtime/cuda_status.h"
#include "kernels/cuda/runtime/device_queue.h"
#include "kernels/ops/validate.h"

namespace baton::kernels::cuda {
namespace {

// A thread rotates kWidth pairs of one head; `head_units` of them make a head.
template <int kWidth>
__global__ void RopeKernel(const RopeParams params, uint32_t head_units, uint32_t pieces) {
  LaunchDependents();
  const int64_t row = GridRow(pieces);
  const auto unit = static_cast<uint32_t>(GridUnit(pieces));
  const int64_t head = unit / head_units;
  const int64_t i = int64_t{unit % head_units} * kWidth;
  if (head >= params.heads) {
    return;
  }
  const int64_t half = params.half_dim;
  uint16_t* x = static_cast<uint16_t*>(params.x) + row * params.x_stride + head * 2 * half + i;
  float first[kWidth];
  float second[kWidth];
  float cosine[kWidth];
  float sine[kWidth];
  LoadBf16(x, first);
  LoadBf16(x + half, second);
  LoadF32(params.cosines + row * half + i, cosine);
  LoadF32(params.sines + row * half + i, sine);
#pragma unroll
  for (int j = 0; j < kWidth; ++j) {
    RotatePair(first[j], second[j], cosine[j], sine[j]);
  }
  StoreBf16(x, first);
  StoreBf16(x + half, second);
}

}  // namespace

absl::Status Rope(const ExecContext& context, const RopeParams& params) {
  if (absl::Status status = Validate(params);
      !status.ok() || params.rows == 0 || params.heads == 0 || params.half_dim == 0) {
    return status;
  }
  const cudaStream_t stream = context.queue->stream();
  if (FitsVectors({params.x, params.cosines, params.sines}, {params.x_stride, params.half_dim})) {
    const int64_t head_units = params.half_dim / kVectorWidth;
    const RowGrid grid(params.rows, params.heads * head_units);
    RopeKernel<kVectorWidth><<<grid.blocks, grid.threads, 0, stream>>>(
        params, static_cast<uint32_t>(head_units), grid.pieces);
  } else {
    const RowGrid grid(params.rows, params.heads * params.half_dim);
    RopeKernel<1><<<grid.blocks, grid.threads, 0, stream>>>(
        params, static_cast<uint32_t>(params.half_dim), grid.pieces);
  }
  return ToStatus(cudaGetLastError(), "rope");
}

}  // namespace baton::kernels::cuda
