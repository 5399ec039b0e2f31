// What is found and made for a split of diffkv_attention before its pages are brought: which it is,
// its first pages' ids, and its queries. All of that waits for reads from global memory, and its
// code is long for being needed once in a split.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/diffkv_attention_plan.cuh"
#include "kernels/cuda/diffkv_queries.cuh"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/warp.cuh"
#include "kernels/ops/diffkv_params.h"

namespace baton::kernels::cuda::diffkv {

// All lanes: writes which split the `index`-th is; long ones of all heads come before short ones.
template <int kDim, bool kPaired>
__device__ void FindSplit(const Plan& plan,
                          const Shared<kDim, kPaired>& shared,
                          int32_t index,
                          Work& work) {
  const auto rows = static_cast<int32_t>(plan.params.num_rows);
  int32_t entry = 0;
  for (int32_t end = 2 * rows; end - entry > 1;) {
    const int32_t middle = (entry + end) / 2;
    (shared.items[middle] <= index ? entry : end) = middle;
  }
  const bool is_long = entry < rows;
  const int32_t row = is_long ? entry : entry - rows;
  const DiffKvLayer layer = plan.params.rows[row].layer;
  const int32_t lane = threadIdx.x % 32;
  int32_t rest = index - shared.items[entry];
  for (int32_t first = 0;; first += 32) {
    const int32_t head = first + lane;
    const Cut cut = CutHead(plan, layer, min(head, plan.heads() - 1) / plan.column_groups);
    const int32_t before = is_long ? 0 : cut.long_splits;
    const int32_t splits = is_long ? cut.long_splits : cut.splits - cut.long_splits;
    const int32_t through = InclusiveSum(head < plan.heads() ? splits : 0);
    const uint32_t beyond = __ballot_sync(0xffffffffu, through > rest);
    if (beyond != 0) {
      const int32_t found = __ffs(static_cast<int32_t>(beyond)) - 1;
      if (lane == found) {
        work.row = row;
        work.head = head;
        work.split = rest - (through - splits - before);
        work.cut = cut;
        work.layer = layer;
      }
      __syncwarp();
      return;
    }
    rest -= __shfl_sync(0xffffffffu, through, 31);
  }
}

// Makes the operands of a split's queries.
template <int kDim, bool kPaired>
__device__ void MakeQueries(const Plan& plan,
                            const Work& split,
                            DiffKvQueries<kDim, kPaired>& queries) {
  const int32_t lane = threadIdx.x % kWarpLanes;
  const DiffKvAttentionRow& row = plan.params.rows[split.row];
  const Columns columns = ColumnsOf(plan, split.head);
  const int32_t head = lane / (kPaired ? 8 : 4);
  const auto* own =
      static_cast<const std::byte*>(plan.params.q) +
      (row.row * plan.params.q_stride + (columns.begin + head) * kDim + lane % 4 * (kDim / 4)) * 2;
  uint4 q[kDim / 32];
#pragma unroll
  for (int i = 0; i < kDim / 32; ++i) {
    q[i] = head < columns.count ? reinterpret_cast<const uint4*>(own)[i] : uint4{};
  }
  StoreQueries<kDim>(RoundQueries<kDim>(q), plan.params.scale * kLog2E, queries);
}

// Takes the block's splits from the queue and prepares them. One warp, all lanes.
template <int kDim, bool kPaired>
class Preparer {
 public:
  __device__ Preparer(const Plan& plan, Counters& counters, Shared<kDim, kPaired>& shared)
      : plan_(plan), counters_(counters), shared_(shared) {
    Take();
  }

  // Prepares the block's next split, its `ordinal`-th, or says once that there is none. The split
  // before the last has ended. The first are dealt.
  __device__ void Next(int32_t ordinal) {
    if (!more_) return;
    Work& work = shared_.work[ordinal % 2];
    const int32_t index =
        ordinal == 0 ? static_cast<int32_t>(blockIdx.x) : __shfl_sync(kAllLanes, taken_, 0);
    more_ = index < shared_.items[2 * plan_.params.num_rows];
    if (more_) {
      if (ordinal > 0) Take();
      FindSplit(plan_, shared_, index, work);
      BringIds(plan_, work, work.begin());
      MakeQueries(plan_, work, shared_.queries[ordinal % 2]);
      WaitForCopies<0>();
    } else {
      work.row = -1;
      Leave();
    }
    __syncwarp();
    if (Leads()) BarrierArrive(&shared_.prepared[ordinal % 2]);
  }

 private:
  __device__ static bool Leads() { return threadIdx.x % kWarpLanes == 0; }

  // Asks for the split after the next one early.
  __device__ void Take() {
    if (Leads()) {
      taken_ = static_cast<int32_t>(gridDim.x + atomicAdd(&counters_.items_taken, 1u));
    }
  }

  // What the last block puts back, no block counts on after that.
  __device__ void Leave() {
    if (!Leads()) return;
    __threadfence();
    if (atomicAdd(&counters_.blocks_done, 1u) + 1 == gridDim.x) {
      counters_.items_taken = 0;
      counters_.blocks_done = 0;
    }
  }

  const Plan& plan_;
  Counters& counters_;
  Shared<kDim, kPaired>& shared_;
  int32_t taken_ = 0;  // in lane 0
  bool more_ = true;
};

}  // namespace baton::kernels::cuda::diffkv
