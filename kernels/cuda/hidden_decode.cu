#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"

#include "kernels/core/float8.h"
#include "kernels/core/half.h"
#include "kernels/cuda/bf16.cuh"
#include "kernels/cuda/copy_row.cuh"
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/hidden_row.cuh"
#include "kernels/cuda/row_grid.cuh"
#include "kernels/cuda/runtime/cuda_status.h"
#include "kernels/cuda/runtime/device_queue.h"
#include "kernels/kv_format/hidden.h"
#include "kernels/ops/validate.h"

namespace baton::kernels::cuda {
namespace {

__device__ const std::byte* Source(const HiddenDecodeParams& params, int64_t row) {
  return params.coded + row * static_cast<int64_t>(params.layout.row_bytes());
}

__device__ uint16_t* Target(const HiddenDecodeParams& params, int64_t row) {
  return static_cast<uint16_t*>(params.out) + row * params.out_stride;
}

template <typename Unit>
__global__ void CopyKernel(const HiddenDecodeParams params, uint32_t pieces) {
  const int64_t row = GridRow(pieces);
  CopyRowPiece(reinterpret_cast<const Unit*>(Source(params, row)),
               params.layout.width / static_cast<int64_t>(sizeof(Unit) / sizeof(uint16_t)),
               pieces,
               reinterpret_cast<Unit*>(Target(params, row)));
}

template <int kWidth>
__global__ void NarrowKernel(const HiddenDecodeParams params, uint32_t pieces) {
  const int64_t row = GridRow(pieces);
  const int64_t i = GridUnit(pieces) * kWidth;
  if (i < params.layout.width) {
    float x[kWidth];
    LoadF32(reinterpret_cast<const float*>(Source(params, row)) + i, x);
    StoreBf16(Target(params, row) + i, x);
  }
}

// kWidth codes; a vector's address is a multiple of its 8 bytes.
template <int kWidth>
__device__ void LoadF8(const uint8_t* source, float (&x)[kWidth]) {
  if constexpr (kWidth == 1) {
    x[0] = F8E4M3ToF32(*source);
  } else {
    const uint2 codes = *reinterpret_cast<const uint2*>(source);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      const uint32_t word = j < 4 ? codes.x : codes.y;
      x[j] = F8E4M3ToF32(static_cast<uint8_t>(word >> (j % 4 * 8)));
    }
  }
}

// hidden_internal::DecodeF8, kGroupLanes threads to a group of channels.
template <int kWidth>
__global__ void DecodeF8Kernel(const HiddenDecodeParams params, uint32_t pieces) {
  const int64_t row = GridRow(pieces);
  const GroupShare<kWidth> share(GridUnit(pieces), params.layout.width);
  if (!share.Has(0)) {
    return;
  }
  const auto* codes = reinterpret_cast<const uint8_t*>(Source(params, row));
  const float scale = F16ToF32(LoadScale(codes + params.layout.width, share.group));
  uint16_t* target = Target(params, row);
#pragma unroll
  for (int a = 0; a < share.kAccesses; ++a) {
    if (share.Has(a)) {
      float x[kWidth];
      LoadF8(codes + share.Channel(a), x);
#pragma unroll
      for (int j = 0; j < kWidth; ++j) {
        x[j] *= scale;
      }
      StoreBf16(target + share.Channel(a), x);
    }
  }
}

constexpr HiddenKernels<HiddenDecodeParams> kKernels = {
    .bf16 = {CopyKernel<uint4>, CopyKernel<uint16_t>},
    .f32 = {NarrowKernel<kVectorWidth>, NarrowKernel<1>},
    .f8 = {DecodeF8Kernel<kVectorWidth>, DecodeF8Kernel<1>}};

}  // namespace

absl::Status HiddenDecode(const ExecContext& context, const HiddenDecodeParams& params) {
  if (absl::Status status = Validate(params); !status.ok() || params.rows == 0) {
    return status;
  }
  if (absl::Status status = CheckCoded("hidden_decode", params.coded, params.layout);
      !status.ok()) {
    return status;
  }
  const bool vectors =
      FitsVectors({params.out}, {params.out_stride}) && RowsFitVectors(params.coded, params.layout);
  LaunchHidden(kKernels, params, vectors, context.queue->stream());
  return ToStatus(cudaGetLastError(), "hidden_decode");
}

}  // namespace baton::kernels::cuda
