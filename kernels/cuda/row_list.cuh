// Which rows of a call something is to be done for, where that is known on the device alone.
#pragma once

#include <cstdint>

#include "kernels/cuda/warp.cuh"

namespace baton::kernels::cuda {

// In shared memory of a block of kThreads: blocks of a launch find the same rows, and share out the
// work on them, in place of a block for every row that may have none.
template <int kThreads, int kThreadRows>
struct RowList {
  static constexpr int32_t kRows = kThreads * kThreadRows;  // looked at in one go
  static constexpr int32_t kWarps = kThreads / kWarpLanes;
  static_assert(kWarps <= kWarpLanes, "a lane has a warp");

  int64_t rows[kRows];
  int32_t of_warps[kWarps];

  // Lists those of the kRows from `first` on for which wanted(row) is true, in order, and returns
  // how many. All threads; the list stays until they call it again, before which they synchronise.
  template <typename Wanted>
  __device__ int32_t Find(int64_t first, int64_t end, const Wanted& wanted) {
    const uint32_t lane = threadIdx.x % kWarpLanes;
    const uint32_t warp = threadIdx.x / kWarpLanes;
    const int64_t of_lane = first + warp * kThreadRows * kWarpLanes + lane;
    uint32_t found[kThreadRows];  // of the warp's lanes
    int32_t own = 0;
#pragma unroll
    for (int i = 0; i < kThreadRows; ++i) {
      const int64_t row = of_lane + i * kWarpLanes;
      found[i] = __ballot_sync(kAllLanes, row < end && wanted(row));
      own += __popc(found[i]);
    }
    if (lane == 0) of_warps[warp] = own;
    __syncthreads();
    const int32_t of_warp = lane < kWarps ? of_warps[lane] : 0;
    int32_t before = __reduce_add_sync(kAllLanes, lane < warp ? of_warp : 0);
#pragma unroll
    for (int i = 0; i < kThreadRows; ++i) {
      if ((found[i] >> lane & 1u) != 0) {
        rows[before + __popc(found[i] & ((1u << lane) - 1u))] = of_lane + i * kWarpLanes;
      }
      before += __popc(found[i]);
    }
    __syncthreads();
    return __reduce_add_sync(kAllLanes, of_warp);
  }
};

}  // namespace baton::kernels::cuda
