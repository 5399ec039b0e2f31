// A warp's lanes.
#pragma once

#include <cstdint>

namespace baton::kernels::cuda {

inline constexpr int32_t kWarpLanes = 32;
inline constexpr uint32_t kAllLanes = 0xffffffffu;

// The lane's place in operands of matrix instructions: its row of eight, and which of the row's
// four lanes it is.
__device__ inline int32_t LaneGroup() { return static_cast<int32_t>(threadIdx.x % kWarpLanes / 4); }
__device__ inline int32_t LaneInGroup() { return static_cast<int32_t>(threadIdx.x % 4); }

// Over all lanes of the warp, which all call it; every lane gets the same bits.
__device__ inline float WarpMax(float x) {
  for (int step = kWarpLanes / 2; step > 0; step /= 2) {
    x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, step));
  }
  return x;
}
__device__ inline float WarpSum(float x) {
  for (int step = kWarpLanes / 2; step > 0; step /= 2) {
    x += __shfl_xor_sync(kAllLanes, x, step);
  }
  return x;
}

}  // namespace baton::kernels::cuda
