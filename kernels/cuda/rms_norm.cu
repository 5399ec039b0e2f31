#include <cuda_runtime.h>

#include <algorithm>
#include <bit>
#include <cstdint>

#include "absl/status/status.h"

#include "kernels/cuda/bf16.cuh"
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/runtime/cuda_status.h"
#include "kernels/cuda/runtime/device_queue.h"
#include "kernels/ops/validate.h"

namespace baton::kernels::cuda {
namespace {

constexpr uint32_t kWarp = 32;
constexpr uint32_t kThreads = 256;
constexpr int64_t kBlockElements = int64_t{kThreads} * kVectorWidth;

__device__ const uint16_t* Source(const RmsNormParams& params, int64_t row, int64_t group) {
  return static_cast<const uint16_t*>(params.x) + row * params.x_stride + group * params.dim;
}

__device__ uint16_t* Target(const RmsNormParams& params, int64_t row, int64_t group) {
  return static_cast<uint16_t*>(params.out) + row * params.out_stride + group * params.dim;
}

// 1 / rms of a group whose squares have this sum.
__device__ float InverseRms(const RmsNormParams& params, float squares) {
  return 1.0f / sqrtf(squares / static_cast<float>(params.dim) + params.epsilon);
}

template <int kWidth>
__device__ float AddSquares(float sum, const float (&x)[kWidth]) {
#pragma unroll
  for (int i = 0; i < kWidth; ++i) {
    sum = __fmaf_rn(x[i], x[i], sum);
  }
  return sum;
}

template <int kWidth>
__device__ void StoreScaled(const float (&x)[kWidth],
                            float inverse,
                            const float (&weight)[kWidth],
                            uint16_t* out) {
  float scaled[kWidth];
#pragma unroll
  for (int i = 0; i < kWidth; ++i) {
    scaled[i] = x[i] * inverse * weight[i];
  }
  StoreBf16(out, scaled);
}

// The sum over `lanes` neighbouring lanes (a power of two); every lane gets it. For whole warps.
__device__ float SumOfLanes(float sum, uint32_t lanes) {
  for (uint32_t offset = lanes / 2; offset > 0; offset /= 2) {
    sum += __shfl_xor_sync(0xffffffffu, sum, static_cast<int>(offset));
  }
  return sum;
}

// The sum over the block, which is of whole warps; every thread gets it. Once per kernel: the
// shared memory is not free again.
__device__ float SumOfBlock(float sum) {
  __shared__ float warp_sums[kThreads / kWarp];
  sum = SumOfLanes(sum, kWarp);
  if (threadIdx.x % kWarp == 0) {
    warp_sums[threadIdx.x / kWarp] = sum;
  }
  __syncthreads();
  float total = 0.0f;
  for (uint32_t warp = 0; warp < blockDim.x / kWarp; ++warp) {
    total += warp_sums[warp];
  }
  return total;
}

// Groups of at most 256 elements (heads): the blockDim.x lanes of threads with one threadIdx.y, a
// power of two up to a warp, have a vector each. `pieces` blocks share the groups of a row.
__global__ void __launch_bounds__(kThreads)
    SmallGroupsKernel(const RmsNormParams params, uint32_t pieces) {
  const int64_t row = blockIdx.x / pieces;
  const int64_t group = int64_t{blockIdx.x % pieces} * blockDim.y + threadIdx.y;
  const int64_t i = int64_t{threadIdx.x} * kVectorWidth;
  const bool has_elements = group < params.groups && i < params.dim;
  float x[kVectorWidth] = {};
  float weight[kVectorWidth] = {};
  if (has_elements) {
    LoadBf16(Source(params, row, group) + i, x);
    LoadF32(params.weight + i, weight);
  }
  const float squares = SumOfLanes(AddSquares(0.0f, x), blockDim.x);
  if (has_elements) {
    StoreScaled(x, InverseRms(params, squares), weight, Target(params, row, group) + i);
  }
}

// One block per group of at most kVectors * kBlockElements elements, which stay in registers. The
// weights are asked for before the sum is waited for: a decode step has few groups.
template <int kVectors>
__global__ void __launch_bounds__(kThreads) LargeGroupsKernel(const RmsNormParams params) {
  LaunchDependents();
  const auto groups = static_cast<uint32_t>(params.groups);
  const int64_t row = blockIdx.x / groups;
  const int64_t group = blockIdx.x % groups;
  const int64_t first = int64_t{threadIdx.x} * kVectorWidth;
  const int64_t step = int64_t{blockDim.x} * kVectorWidth;
  const uint16_t* source = Source(params, row, group);
  float x[kVectors][kVectorWidth] = {};
  float weight[kVectors][kVectorWidth] = {};
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    if (const int64_t i = first + v * step; i < params.dim) {
      LoadBf16(source + i, x[v]);
      LoadF32(params.weight + i, weight[v]);
    }
  }
  float squares = 0.0f;
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    squares = AddSquares(squares, x[v]);
  }
  const float inverse = InverseRms(params, SumOfBlock(squares));
  uint16_t* target = Target(params, row, group);
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    if (const int64_t i = first + v * step; i < params.dim) {
      StoreScaled(x[v], inverse, weight[v], target + i);
    }
  }
}

// One block per group of any size and alignment, read twice. In place too: an element is read and
// written by the same thread.
__global__ void __launch_bounds__(kThreads) AnyGroupsKernel(const RmsNormParams params) {
  const auto groups = static_cast<uint32_t>(params.groups);
  const int64_t row = blockIdx.x / groups;
  const int64_t group = blockIdx.x % groups;
  const uint16_t* source = Source(params, row, group);
  float squares = 0.0f;
  float x[1];
  for (int64_t i = threadIdx.x; i < params.dim; i += blockDim.x) {
    LoadBf16(source + i, x);
    squares = AddSquares(squares, x);
  }
  const float inverse = InverseRms(params, SumOfBlock(squares));
  uint16_t* target = Target(params, row, group);
  for (int64_t i = threadIdx.x; i < params.dim; i += blockDim.x) {
    LoadBf16(source + i, x);
    const float weight[1] = {params.weight[i]};
    StoreScaled(x, inverse, weight, target + i);
  }
}

void LaunchSmallGroups(const RmsNormParams& params, cudaStream_t stream) {
  const uint32_t lanes = std::bit_ceil(static_cast<uint32_t>(params.dim / kVectorWidth));
  const int64_t warp_groups = kWarp / lanes;
  const int64_t warps = (params.groups + warp_groups - 1) / warp_groups;
  const int64_t block_groups = std::min<int64_t>(warps, kThreads / kWarp) * warp_groups;
  const auto pieces = static_cast<uint32_t>((params.groups + block_groups - 1) / block_groups);
  const dim3 block(lanes, static_cast<uint32_t>(block_groups));
  SmallGroupsKernel<<<static_cast<uint32_t>(params.rows) * pieces, block, 0, stream>>>(params,
                                                                                       pieces);
}

void LaunchLargeGroups(const RmsNormParams& params, cudaStream_t stream) {
  const auto blocks = static_cast<uint32_t>(params.rows * params.groups);
  const int64_t vectors = params.dim / kVectorWidth;
  const auto threads =
      static_cast<uint32_t>(std::min<int64_t>((vectors + kWarp - 1) / kWarp * kWarp, kThreads));
  if (params.dim <= kBlockElements) {
    LargeGroupsKernel<1><<<blocks, threads, 0, stream>>>(params);
  } else if (params.dim <= 2 * kBlockElements) {
    LargeGroupsKernel<2><<<blocks, threads, 0, stream>>>(params);
  } else {
    LargeGroupsKernel<4><<<blocks, threads, 0, stream>>>(params);
  }
}

}  // namespace

absl::Status RmsNorm(const ExecContext& context, const RmsNormParams& params) {
  if (absl::Status status = Validate(params);
      !status.ok() || params.rows == 0 || params.groups == 0) {
    return status;
  }
  const cudaStream_t stream = context.queue->stream();
  const bool vectors = FitsVectors({params.x, params.weight, params.out},
                                   {params.x_stride, params.out_stride, params.dim});
  if (!vectors || params.dim > 4 * kBlockElements) {
    const auto blocks = static_cast<uint32_t>(params.rows * params.groups);
    AnyGroupsKernel<<<blocks, kThreads, 0, stream>>>(params);
  } else if (params.dim <= int64_t{kWarp} * kVectorWidth) {
    LaunchSmallGroups(params, stream);
  } else {
    LaunchLargeGroups(params, stream);
  }
  return ToStatus(cudaGetLastError(), "rms_norm");
}

}  // namespace baton::kernels::cuda
