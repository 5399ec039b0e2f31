// What is found and made for a split of diffkv_attention: which it is and its first pages' ids,
// before its pages are brought, and its queries, before they are attended. All of that waits for
// reads from global memory, and its code is long for being needed once in a split.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/diffkv_attention_plan.cuh"
#include "kernels/cuda/diffkv_queries.cuh"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/warp.cuh"
#include "kernels/ops/diffkv_params.h"

namespace baton::kernels::cuda::diffkv {

// All lanes: writes which split is dealt to the block; false if none is.
__device__ inline bool FindDealt(const Plan& plan, Work& work) {
  const auto block = static_cast<int32_t>(blockIdx.x);
  const int32_t split = block / plan.dealt.heads;
  const int32_t of_all = block - split * plan.dealt.heads;
  const int32_t row = of_all / plan.heads();
  const int32_t head = of_all - row * plan.heads();
  const DiffKvLayer layer = plan.params.rows[row].layer;
  const Cut cut = CutHead(plan, layer, head / plan.column_groups);
  if (split >= cut.splits.count) return false;
  if (threadIdx.x % kWarpLanes == 0) {
    work.row = row;
    work.head = head;
    work.split = split;
    work.cut = cut;
    work.layer = layer;
  }
  __syncwarp();
  return true;
}

// All lanes: writes which split the `index`-th that is not dealt is.
template <int kDim, bool kPaired>
__device__ void FindSplit(const Plan& plan,
                          const Shared<kDim, kPaired>& shared,
                          int32_t index,
                          Work& work) {
  const auto rows = static_cast<int32_t>(plan.params.num_rows);
  int32_t row = 0;
  for (int32_t end = rows; end - row > 1;) {
    const int32_t middle = (row + end) / 2;
    (shared.items[middle] <= index ? row : end) = middle;
  }
  const DiffKvLayer layer = plan.params.rows[row].layer;
  const int32_t lane = threadIdx.x % 32;
  int32_t rest = index - shared.items[row];
  for (int32_t first = 0;; first += 32) {
    const int32_t head = first + lane;
    const Cut cut = CutHead(plan, layer, min(head, plan.heads() - 1) / plan.column_groups);
    const int32_t before = plan.dealt.of(row * plan.heads() + head, cut.splits.count);
    const int32_t splits = cut.splits.count - before;
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

// Reads a lane's share of a split's queries (diffkv_queries.cuh).
template <int kDim, bool kPaired>
__device__ void ReadQueries(const Plan& plan, const Work& split, uint4 (&q)[kDim / 32]) {
  const int32_t lane = threadIdx.x % kWarpLanes;
  const DiffKvAttentionRow& row = plan.params.rows[split.row];
  const Columns columns = ColumnsOf(plan, split.head);
  const int32_t head = lane / (kPaired ? 8 : 4);
  const auto* own =
      static_cast<const std::byte*>(plan.params.q) +
      (row.row * plan.params.q_stride + (columns.begin + head) * kDim + lane % 4 * (kDim / 4)) * 2;
#pragma unroll
  for (int i = 0; i < kDim / 32; ++i) {
    q[i] = head < columns.count ? reinterpret_cast<const uint4*>(own)[i] : uint4{};
  }
}

// Takes the block's splits from the queue and prepares them. One warp, all lanes.
template <int kDim, bool kPaired>
class Preparer {
 public:
  __device__ Preparer(const Plan& plan, Counters& counters, Shared<kDim, kPaired>& shared)
      : plan_(plan), counters_(counters), shared_(shared) {}

  // False when it has been said that there is no other split.
  __device__ bool more() const { return more_; }

  // Prepares the block's next split, its `ordinal`-th, or says that there is none. The split before
  // the last has ended. The first is dealt, if one is.
  __device__ void Next(int32_t ordinal) {
    Work& work = shared_.work[ordinal % 2];
    more_ = (ordinal == 0 && FindDealt(plan_, work)) || Take(work);
    uint4 q[kDim / 32];
    if (more_) {
      BringIds(plan_, work, work.begin());
      ReadQueries<kDim, kPaired>(plan_, work, q);
      WaitForCopies<0>();
    } else {
      work.row = -1;
      Leave();
    }
    __syncwarp();
    if (Leads()) BarrierArrive(&shared_.found[ordinal % 2]);
    if (!more_) return;
    StoreQueries<kDim>(
        RoundQueries<kDim>(q), plan_.params.scale * kLog2E, shared_.queries[ordinal % 2]);
    __syncwarp();
    if (Leads()) BarrierArrive(&shared_.asked[ordinal % 2]);
  }

 private:
  __device__ static bool Leads() { return threadIdx.x % kWarpLanes == 0; }

  // Takes a split from the queue; false if there is none.
  __device__ bool Take(Work& work) {
    int32_t index = 0;
    if (Leads()) index = static_cast<int32_t>(atomicAdd(&counters_.items_taken, 1u));
    index = __shfl_sync(kAllLanes, index, 0);
    BarrierWait(&shared_.counted, 0);
    if (index >= shared_.items[plan_.params.num_rows]) return false;
    FindSplit(plan_, shared_, index, work);
    return true;
  }

  // The kernel behind may begin when no block has a split to take any more. What the last block
  // puts back, no block counts on after that.
  __device__ void Leave() {
    LaunchDependents();
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
  bool more_ = true;
};

}  // namespace baton::kernels::cuda::diffkv
