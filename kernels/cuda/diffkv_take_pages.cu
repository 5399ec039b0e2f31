// The page manager of a generation step in format `diffkv` (docs/kernels/diffkv.md). A block has a
// sequence, and a thread a head of one of its layers: what a head needs follows from its counts and
// from what the policy decided, and an exclusive sum over the block says which ids of the lease it
// gets.
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <limits>

#include "absl/status/status.h"

#include "kernels/core/exec_context.h"
#include "kernels/cuda/block_sum.cuh"
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/diffkv_checks.h"
#include "kernels/cuda/diffkv_pages.cuh"
#include "kernels/cuda/runtime/cuda_status.h"
#include "kernels/cuda/runtime/device_queue.h"
#include "kernels/cuda/warp.cuh"
#include "kernels/kv_format/diffkv.h"
#include "kernels/ops/diffkv_pages.h"
#include "kernels/ops/diffkv_params.h"
#include "kernels/ops/diffkv_policy.h"
#include "kernels/ops/param_checker.h"

namespace baton::kernels::cuda {
namespace {

constexpr int32_t kThreads = 512;
constexpr int32_t kWarps = kThreads / kWarpLanes;

// A head of one layer of the block's sequence.
struct LayerHead {
  const DiffKvAppendRow& row;
  int32_t head;
};

__device__ int32_t HeadsOf(const DiffKvTakePagesParams& params) {
  return static_cast<int32_t>(params.layers) * params.pages.geometry.kv_heads;
}

// The `index`-th in the order in which heads take pages.
__device__ LayerHead HeadAt(const DiffKvTakePagesParams& params, int32_t index) {
  const int32_t kv_heads = params.pages.geometry.kv_heads;
  const int32_t layer = index / kv_heads;
  return {.row = params.rows[layer * params.sequences + blockIdx.x],
          .head = index - layer * kv_heads};
}

// What the new token does to a head. Its pages are not known yet.
__device__ DiffKvAction ActionOf(const LayerHead& at) {
  return at.row.sweep ? at.row.actions[at.head]
                      : AppendToDiffKv(DiffKvCount(at.row.layer, at.head, kDiffKvHigh));
}

// One tier of a head and its new token.
struct TierToken {
  int32_t slot;  // -1: none
  bool grows;    // the tier has a token more
  bool fresh;    // and that needs a page
};

__device__ TierToken TokenOf(const DiffKvGeometry& geometry,
                             const LayerHead& at,
                             const DiffKvAction& action,
                             int32_t tier) {
  const bool grows = DiffKvGrows(action, tier);
  const int32_t count = DiffKvCount(at.row.layer, at.head, tier);
  return {.slot = DiffKvSlot(action, tier),
          .grows = grows,
          .fresh = grows && count % DiffKvPageTokens(geometry.tiers[tier]) == 0};
}

// Pages that a head takes; less than zero if its token does not fit: its table has no column left,
// or the action is not of the tokens stored.
__device__ int32_t NeedOf(const DiffKvTakePagesParams& params, const LayerHead& at) {
  const DiffKvGeometry& geometry = params.pages.geometry;
  const DiffKvLayer& layer = at.row.layer;
  const DiffKvAction action = ActionOf(at);
  int32_t need = 0;
  int32_t held = 0;
  for (int32_t tier = 0; tier < kDiffKvTiers; ++tier) {
    held += DevicePagesFor(geometry, layer.token_counts, at.head, tier);
    need += TokenOf(geometry, at, action, tier).fresh ? 1 : 0;
  }
  const bool fits = FitsCounts(action,
                               DiffKvCount(layer, at.head, kDiffKvHigh),
                               DiffKvCount(layer, at.head, kDiffKvLow)) &&
                    held + need <= layer.columns;
  return fits ? need : -1;
}

// What the heads of a sequence take of its lease.
struct Plan {
  int32_t taken;
  bool fits;
};

__device__ Plan MakePlan(const DiffKvTakePagesParams& params,
                         const DiffKvLease& lease,
                         int32_t* warp_sums) {
  int32_t need = 0;
  bool fits = true;
  for (auto i = static_cast<int32_t>(threadIdx.x); i < HeadsOf(params); i += kThreads) {
    const int32_t of_head = NeedOf(params, HeadAt(params, i));
    fits = fits && of_head >= 0;
    need += of_head;
  }
  fits = __syncthreads_and(fits ? 1 : 0) != 0;
  int32_t taken;
  ExclusiveSum<kWarps>(need, warp_sums, taken);
  return {.taken = taken, .fits = fits && taken <= lease.count - lease.used};
}

// Gives the slots of a head their pages, the lease's from `next` on where they are new, and counts
// its token.
__device__ void TakePages(const DiffKvTakePagesParams& params,
                          const LayerHead& at,
                          const int32_t* next) {
  const DiffKvGeometry& geometry = params.pages.geometry;
  DiffKvAction action = ActionOf(at);
  for (int32_t tier = 0; tier < kDiffKvTiers; ++tier) {
    const TierToken token = TokenOf(geometry, at, action, tier);
    if (token.slot < 0) continue;
    const int32_t page = token.slot / DiffKvPageTokens(geometry.tiers[tier]);
    int32_t& entry = DiffKvPageId(at.row.layer, at.head, tier, page);
    if (token.fresh) entry = *next++;
    action.pages[tier] = entry;
    if (token.grows) DiffKvCount(at.row.layer, at.head, tier) = token.slot + 1;
  }
  at.row.actions[at.head] = action;
}

// All heads take theirs; `ids` are those of the lease that nobody has.
__device__ void TakeAll(const DiffKvTakePagesParams& params,
                        const int32_t* ids,
                        int32_t* warp_sums) {
  const int32_t heads = HeadsOf(params);
  for (int32_t first = 0; first < heads; first += kThreads) {
    const int32_t index = first + static_cast<int32_t>(threadIdx.x);
    const bool exists = index < heads;
    int32_t taken;
    const int32_t before =
        ExclusiveSum<kWarps>(exists ? NeedOf(params, HeadAt(params, index)) : 0, warp_sums, taken);
    if (exists) TakePages(params, HeadAt(params, index), ids + before);
    ids += taken;
  }
}

// Zeroes pages, a warp each in turn.
__device__ void ZeroPages(const DiffKvPages& pages, const int32_t* ids, int32_t count) {
  for (auto i = static_cast<int32_t>(threadIdx.x / kWarpLanes); i < count; i += kWarps) {
    auto* page = reinterpret_cast<uint4*>(DevicePage(pages, ids[i]));
    const auto pieces = static_cast<uint32_t>(pages.geometry.page_bytes() / sizeof(uint4));
    for (uint32_t at = threadIdx.x % kWarpLanes; at < pieces; at += kWarpLanes) {
      page[at] = uint4{0, 0, 0, 0};
    }
  }
}

// Block x has sequence x. Where its tokens do not fit only actions change, and become none.
__global__ void __launch_bounds__(kThreads)
    TakePagesKernel(const __grid_constant__ DiffKvTakePagesParams params) {
  __shared__ int32_t warp_sums[kWarps];
  DiffKvLease* const own = params.rows[blockIdx.x].lease;
  const DiffKvLease lease = *own;
  const Plan plan = MakePlan(params, lease, warp_sums);
  if (!plan.fits) {
    for (auto i = static_cast<int32_t>(threadIdx.x); i < HeadsOf(params); i += kThreads) {
      const LayerHead at = HeadAt(params, i);
      at.row.actions[at.head] = {};
    }
    return;
  }
  const int32_t* const ids = lease.ids + lease.used;
  TakeAll(params, ids, warp_sums);
  ZeroPages(params.pages, ids, plan.taken);
  if (threadIdx.x == 0) own->used = lease.used + plan.taken;
}

absl::Status Check(const DiffKvTakePagesParams& params) {
  ParamChecker check("diffkv_take_pages");
  check.NotNegative("layers", params.layers).NotNegative("sequences", params.sequences);
  if (!check.ok() || params.layers == 0 || params.sequences == 0) {
    return check.status();
  }
  CheckDiffKvPages(params.pages, check);
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  check.NotNull("rows", params.rows)
      .Require(params.sequences <= kMost, "sequences", params.sequences, "must be below 2^31")
      .Require(params.layers <= (kMost - kThreads) / params.pages.geometry.kv_heads,
               "layers",
               params.layers,
               "times kv_heads must be below 2^31 - 512");
  return check.status();
}

}  // namespace

absl::Status DiffKvTakePages(const ExecContext& context, const DiffKvTakePagesParams& params) {
  if (absl::Status status = Check(params);
      !status.ok() || params.layers == 0 || params.sequences == 0) {
    return status;
  }
  TakePagesKernel<<<static_cast<uint32_t>(params.sequences),
                    kThreads,
                    0,
                    context.queue->stream()>>>(params);
  return ToStatus(cudaGetLastError(), "diffkv_take_pages");
}

}  // namespace baton::kernels::cuda
