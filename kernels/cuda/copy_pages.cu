#include <cuda_runtime.h>

#include <cstdint>

#include "absl/status/status.h"

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
    const auto misaligned = static_cast<int64_t>(reinterpret_cast<uintptr_t>(params.base) % 64);
    check.NotNull("source", params.source)
        .NotNull("target", params.target)
        .NotNull("base", params.base)
        .Require(misaligned == 0, "base modulo 64", misaligned, "must be 0")
        .Positive("stride_bytes", params.stride_bytes)
        .Require(params.stride_bytes % 64 == 0,
                 "stride_bytes",
                 params.stride_bytes,
                 "must be a multiple of 64");
  }
  return check.status();
}

__global__ void CopyPagesKernel(const CopyPagesParams params, uint32_t pieces) {
  const int64_t i = GridRow(pieces);
  const int64_t stride = params.stride_bytes;
  CopyRowPiece(reinterpret_cast<const uint4*>(params.base + params.source[i] * stride),
               stride / int64_t{sizeof(uint4)},
               pieces,
               reinterpret_cast<uint4*>(params.base + params.target[i] * stride));
}

}  // namespace

absl::Status CopyPages(const ExecContext& context, const CopyPagesParams& params) {
  if (absl::Status status = Check(params); !status.ok() || params.count == 0) {
    return status;
  }
  const RowGrid grid = CopyGrid(params.count, params.stride_bytes / int64_t{sizeof(uint4)});
  CopyPagesKernel<<<grid.blocks, grid.threads, 0, context.queue->stream()>>>(params, grid.pieces);
  return ToStatus(cudaGetLastError(), "copy_pages");
}

}  // namespace baton::kernels::cuda
