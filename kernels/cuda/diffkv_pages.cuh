// The page manager of format `diffkv` on the device: what kernels/ops/diffkv_pages.h does for
// hosts.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/warp.cuh"
#include "kernels/kv_format/diffkv.h"
#include "kernels/ops/diffkv_pages.h"
#include "kernels/ops/diffkv_params.h"

namespace baton::kernels::cuda {

__device__ inline std::byte* DevicePage(const DiffKvPages& pages, int32_t id) {
  return pages.base + static_cast<size_t>(id) * pages.geometry.page_bytes();
}

// Pages of the tokens counted in `counts` ([kv_heads][kDiffKvTiers]; null: none).
__device__ inline int32_t DevicePagesFor(const DiffKvGeometry& geometry,
                                         const int32_t* counts,
                                         int32_t head,
                                         int32_t tier) {
  return counts == nullptr ? 0 : geometry.pages_for(tier, counts[head * kDiffKvTiers + tier]);
}

// What one head asks of the page table and of the lease.
struct DiffKvHeadNeed {
  int32_t pages = 0;  // it will hold
  int32_t taken = 0;  // of them new
};

// Where a head's new pages are in the order in which the heads of a layer get them.
struct DiffKvPagePlan {
  int32_t before = 0;  // new pages of the heads before it
  int32_t taken = 0;   // new pages of all heads
  bool fits = true;    // every head's pages fit `columns`
};

// All lanes of a warp call it and get the plan. need(head) is a DiffKvHeadNeed.
template <typename Need>
__device__ inline DiffKvPagePlan PlanPages(int32_t kv_heads,
                                           int32_t head,
                                           int32_t columns,
                                           const Need& need) {
  DiffKvPagePlan plan;
  for (int32_t other = static_cast<int32_t>(threadIdx.x % 32); other < kv_heads; other += 32) {
    const DiffKvHeadNeed needed = need(other);
    plan.before += other < head ? needed.taken : 0;
    plan.taken += needed.taken;
    plan.fits = plan.fits && needed.pages <= columns;
  }
  plan.before = __reduce_add_sync(kAllLanes, plan.before);
  plan.taken = __reduce_add_sync(kAllLanes, plan.taken);
  plan.fits = __all_sync(kAllLanes, plan.fits) != 0;
  return plan;
}

// Counts the arrivals of `blocks` blocks; one thread of each calls it once. True in the last, which
// then sees what the others wrote before, and may overwrite what they read before; the counter is
// zero again.
__device__ inline bool ArrivesLast(uint32_t* counter, uint32_t blocks) {
  __threadfence();
  const bool last = atomicAdd(counter, 1u) == blocks - 1;
  if (last) {
    *counter = 0;
    __threadfence();
  }
  return last;
}

}  // namespace baton::kernels::cuda
