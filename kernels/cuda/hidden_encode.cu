#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"

#include "kernels/core/float8.h"
#include "kernels/core/half.h"
#include "kernels/cuda/bf16.cuh"
#include "kernels/cuda/copy_row.cuh"
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/fp8.cuh"
#include "kernels/cuda/hidden_row.cuh"
#include "kernels/cuda/row_grid.cuh"
#include "kernels/cuda/runtime/cuda_status.h"
#include "kernels/cuda/runtime/device_queue.h"
#include "kernels/kv_format/hidden.h"
#include "kernels/ops/validate.h"

namespace baton::kernels::cuda {
namespace {

__device__ const uint16_t* Source(const HiddenEncodeParams& params, int64_t row) {
  return static_cast<const uint16_t*>(params.x) + row * params.x_stride;
}

__device__ std::byte* Target(const HiddenEncodeParams& params, int64_t row) {
  return params.coded + row * static_cast<int64_t>(params.layout.row_bytes());
}

template <typename Unit>
__global__ void CopyKernel(const HiddenEncodeParams params, uint32_t pieces) {
  const int64_t row = GridRow(pieces);
  CopyRowPiece(reinterpret_cast<const Unit*>(Source(params, row)),
               params.layout.width / static_cast<int64_t>(sizeof(Unit) / sizeof(uint16_t)),
               pieces,
               reinterpret_cast<Unit*>(Target(params, row)));
}

template <int kWidth>
__global__ void WidenKernel(const HiddenEncodeParams params, uint32_t pieces) {
  const int64_t row = GridRow(pieces);
  const int64_t i = GridUnit(pieces) * kWidth;
  if (i < params.layout.width) {
    float x[kWidth];
    LoadBf16(Source(params, row) + i, x);
    StoreF32(reinterpret_cast<float*>(Target(params, row)) + i, x);
  }
}

// hidden_internal::EncodeF8, kGroupLanes threads to a group of channels. No thread leaves early:
// the warps have to be whole when the lanes look for the largest magnitude.
template <int kWidth>
__global__ void EncodeF8Kernel(const HiddenEncodeParams params, uint32_t pieces) {
  const int64_t row = GridRow(pieces);
  const GroupShare<kWidth> share(GridUnit(pieces), params.layout.width);
  const uint16_t* source = Source(params, row);
  float x[share.kAccesses][kWidth] = {};
  float largest = 0.0f;
#pragma unroll
  for (int a = 0; a < share.kAccesses; ++a) {
    if (share.Has(a)) {
      LoadBf16(source + share.Channel(a), x[a]);
    }
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      largest = fmaxf(largest, fabsf(x[a][j]));
    }
  }
#pragma unroll
  for (int offset = kGroupLanes / 2; offset > 0; offset /= 2) {
    largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, offset));
  }
  const uint16_t scale_bits = F32ToF16Up(largest / kF8E4M3Max);
  const float scale = F16ToF32(scale_bits);
  auto* codes = reinterpret_cast<uint8_t*>(Target(params, row));
#pragma unroll
  for (int a = 0; a < share.kAccesses; ++a) {
    if (share.Has(a)) {
#pragma unroll
      for (int j = 0; j < kWidth; ++j) {
        x[a][j] = scale > 0.0f ? x[a][j] / scale : 0.0f;
      }
      StoreF8(codes + share.Channel(a), x[a]);
    }
  }
  if (share.lane == 0 && share.Has(0)) {
    StoreScale(codes + params.layout.width, share.group, scale_bits);
  }
}

constexpr HiddenKernels<HiddenEncodeParams> kKernels = {
    .bf16 = {CopyKernel<uint4>, CopyKernel<uint16_t>},
    .f32 = {WidenKernel<kVectorWidth>, WidenKernel<1>},
    .f8 = {EncodeF8Kernel<kVectorWidth>, EncodeF8Kernel<1>}};

}  // namespace

absl::Status HiddenEncode(const ExecContext& context, const HiddenEncodeParams& params) {
  if (absl::Status status = Validate(params); !status.ok() || params.rows == 0) {
    return status;
  }
  if (absl::Status status = CheckCoded("hidden_encode", params.coded, params.layout);
      !status.ok()) {
    return status;
  }
  const bool vectors =
      FitsVectors({params.x}, {params.x_stride}) && RowsFitVectors(params.coded, params.layout);
  LaunchHidden(kKernels, params, vectors, context.queue->stream());
  return ToStatus(cudaGetLastError(), "hidden_encode");
}

}  // namespace baton::kernels::cuda
