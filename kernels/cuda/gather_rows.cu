#include <cuda_runtime.h>

#include <cstdint>

#include "absl/status/status.h"

#include "kernels/cuda/bf16.cuh"
#include "kernels/cuda/copy_row.cuh"
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/row_grid.cuh"
#include "kernels/cuda/runtime/cuda_status.h"
#include "kernels/cuda/runtime/device_queue.h"
#include "kernels/ops/param_checker.h"

namespace baton::kernels::cuda {
namespace {

absl::Status Check(const GatherRowsParams& params) {
  ParamChecker check("gather_rows");
  check.NotNegative("rows", params.rows).NotNegative("dim", params.dim);
  if (check.ok() && params.rows > 0 && params.dim > 0) {
    check.NotNull("x", params.x)
        .NotNull("row_index", params.row_index)
        .NotNull("out", params.out)
        .AtLeast("x_stride", params.x_stride, params.dim)
        .AtLeast("out_stride", params.out_stride, params.dim);
  }
  return check.status();
}

template <typename Unit>
__global__ void GatherRowsKernel(const GatherRowsParams params, uint32_t pieces) {
  const int64_t row = GridRow(pieces);
  const uint16_t* source =
      static_cast<const uint16_t*>(params.x) + params.row_index[row] * params.x_stride;
  uint16_t* target = static_cast<uint16_t*>(params.out) + row * params.out_stride;
  constexpr int64_t kUnitElements = sizeof(Unit) / sizeof(uint16_t);
  CopyRowPiece(reinterpret_cast<const Unit*>(source),
               params.dim / kUnitElements,
               pieces,
               reinterpret_cast<Unit*>(target));
}

}  // namespace

absl::Status GatherRows(const ExecContext& context, const GatherRowsParams& params) {
  if (absl::Status status = Check(params); !status.ok() || params.rows == 0 || params.dim == 0) {
    return status;
  }
  const cudaStream_t stream = context.queue->stream();
  if (FitsVectors({params.x, params.out}, {params.x_stride, params.out_stride, params.dim})) {
    const RowGrid grid = CopyGrid(params.rows, params.dim / kVectorWidth);
    GatherRowsKernel<uint4><<<grid.blocks, grid.threads, 0, stream>>>(params, grid.pieces);
  } else {
    const RowGrid grid = CopyGrid(params.rows, params.dim);
    GatherRowsKernel<uint16_t><<<grid.blocks, grid.threads, 0, stream>>>(params, grid.pieces);
  }
  return ToStatus(cudaGetLastError(), "gather_rows");
}

}  // namespace baton::kernels::cuda
