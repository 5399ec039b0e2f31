#include <cuda_runtime.h>

#include <cstdint>

#include "absl/status/status.h"

#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/row_grid.cuh"
#include "kernels/cuda/runtime/cuda_status.h"
#include "kernels/cuda/runtime/device_queue.h"
#include "kernels/ops/validate.h"

namespace baton::kernels::cuda {
namespace {

// The angle is rounded to fp32 before the cosine, as HuggingFace's rotary embedding does. sincosf
// reduces large angles exactly, which positions up to a million need.
__global__ void RopeAnglesKernel(const RopeAnglesParams params, uint32_t pieces) {
  const int64_t row = GridRow(pieces);
  const int64_t i = GridUnit(pieces);
  if (i >= params.half_dim) {
    return;
  }
  const float angle = static_cast<float>(params.positions[row]) * params.inverse_frequencies[i];
  float sine;
  float cosine;
  sincosf(angle, &sine, &cosine);
  params.cosines[row * params.half_dim + i] = cosine;
  params.sines[row * params.half_dim + i] = sine;
}

}  // namespace

absl::Status RopeAngles(const ExecContext& context, const RopeAnglesParams& params) {
  if (absl::Status status = Validate(params);
      !status.ok() || params.rows == 0 || params.half_dim == 0) {
    return status;
  }
  const RowGrid grid(params.rows, params.half_dim);
  RopeAnglesKernel<<<grid.blocks, grid.threads, 0, context.queue->stream()>>>(params, grid.pieces);
  return ToStatus(cudaGetLastError(), "rope_angles");
}

}  // namespace baton::kernels::cuda
