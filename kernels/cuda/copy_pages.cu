#include <cuda_runtime.h>

#include <cstdint>

#include "absl/status/status.h"

#include "kernels/cuda/check_pages.h"
#include "kernels/cuda/copy_row.cuh"
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/row_grid.cuh"
#include "kernels/cuda/runtime/cuda_status.h"
#include "kernels/cuda/runtime/device_queue.h"
#include "kernels/ops/param_checker.h"

namespace baton::kernels::cuda {
namespace {

absl::Status Check(const CopyPagesParams& params) {
  ParamChecker check("copy_pages");
  check.NotNegative("count", params.count);
  if (check.ok() && params.count > 0) {
    CheckPages(params.pages, check);
    check.NotNull("source", params.source).NotNull("target", params.target);
  }
  return check.status();
}

// Copies what a page occupies in the pool, past its last byte too: a multiple of 64 bytes.
__global__ void CopyPagesKernel(const CopyPagesParams params, int64_t stride, uint32_t pieces) {
  const int64_t i = GridRow(pieces);
  CopyRowPiece(reinterpret_cast<const uint4*>(params.pages.base + params.source[i] * stride),
               stride / int64_t{sizeof(uint4)},
               pieces,
               reinterpret_cast<uint4*>(params.pages.base + params.target[i] * stride));
}

}  // namespace

absl::Status CopyPages(const ExecContext& context, const CopyPagesParams& params) {
  if (absl::Status status = Check(params); !status.ok() || params.count == 0) {
    return status;
  }
  const auto stride = static_cast<int64_t>(params.pages.layout.stride_bytes());
  const RowGrid grid = CopyGrid(params.count, stride / int64_t{sizeof(uint4)});
  CopyPagesKernel<<<grid.blocks, grid.threads, 0, context.queue->stream()>>>(
      params, stride, grid.pieces);
  return ToStatus(cudaGetLastError(), "copy_pages");
}

}  // namespace baton::kernels::cuda
