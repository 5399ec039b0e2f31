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

// Calls both functions: of every two warps that share a scheduler one in this order, the other one
// in the opposite, so that what one function needs is not idle while all warps are at the other. A
// multiprocessor's four schedulers take a block's warps in turns.
template <typename First, typename Second>
__device__ inline void TakeTurns(const First& first, const Second& second) {
  const auto of_scheduler = static_cast<int32_t>(threadIdx.x) / (4 * kWarpLanes);
#pragma unroll 1
  for (int32_t part = 0; part < 2; ++part) {
    if (part == of_scheduler % 2) {
      first();
    } else {
      second();
    }
  }
}

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

// Over the lanes of one place in their groups: those of a column, or of a row, of a matrix operand.
// All lanes.
__device__ inline float MaxAcrossGroups(float value) {
  for (int distance = 4; distance < 32; distance *= 2) {
    value = fmaxf(value, __shfl_xor_sync(kAllLanes, value, distance));
  }
  return value;
}
__device__ inline float SumAcrossGroups(float value) {
  for (int distance = 4; distance < 32; distance *= 2) {
    value += __shfl_xor_sync(kAllLanes, value, distance);
  }
  return value;
}

// The sum of the values of the lanes up to this one. All lanes.
__device__ inline int32_t InclusiveSum(int32_t value) {
  const auto lane = static_cast<int32_t>(threadIdx.x % kWarpLanes);
  for (int32_t distance = 1; distance < kWarpLanes; distance *= 2) {
    const int32_t below = __shfl_up_sync(kAllLanes, value, distance);
    value += lane >= distance ? below : 0;
  }
  return value;
}

}  // namespace baton::kernels::cuda
