// Sums over the threads of a block.
#pragma once

#include <cstdint>

#include "kernels/cuda/warp.cuh"

namespace baton::kernels::cuda {

// The sum of the threads before, and in `total` that of all. Every thread of a block of kWarps
// calls it; `warp_sums` [kWarps] is shared memory.
template <int kWarps>
__device__ inline int32_t ExclusiveSum(int32_t value, int32_t* warp_sums, int32_t& total) {
  const auto warp = static_cast<int>(threadIdx.x / kWarpLanes);
  const int32_t inclusive = InclusiveSum(value);
  __syncthreads();  // the sums before were read
  if (threadIdx.x % kWarpLanes == kWarpLanes - 1) warp_sums[warp] = inclusive;
  __syncthreads();
  int32_t before = inclusive - value;
  total = 0;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) {
    before += w < warp ? warp_sums[w] : 0;
    total += warp_sums[w];
  }
  return before;
}

}  // namespace baton::kernels::cuda
