// The end of splits in diffkv_attention: what computing warps found is added up, and splits are
// merged when the last of them has ended.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/diffkv_attention_partial.cuh"
#include "kernels/cuda/diffkv_attention_plan.cuh"
#include "kernels/cuda/diffkv_page_attention.cuh"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/warp.cuh"
#include "kernels/ops/diffkv_params.h"

namespace baton::kernels::cuda::diffkv {

// Gives a computing warp's softmax of the block's `ordinal`-th split.
template <int kDim, bool kPaired>
__device__ void EndSplit(const Slot& slot,
                         int32_t ordinal,
                         const DiffKvSoftmax<kDim, kPaired>& softmax,
                         Shared<kDim, kPaired>& shared) {
  const int32_t lane = threadIdx.x % kWarpLanes;
  WarpShare<kDim, kPaired>& share = shared.shares[threadIdx.x / kWarpLanes];
  // What was given before has been taken.
  BarrierWait(&shared.free, (ordinal & 1) ^ 1);
#pragma unroll
  for (int i = 0; i < share.kVectors; ++i) {
    // Both columns of a head are one.
    const auto& x = softmax.values[kPaired ? 2 * i : i];
    const auto& y = softmax.values[kPaired ? 2 * i + 1 : i];
    share.values[i][lane] = kPaired
                                ? make_float4(x[0] + x[1], x[2] + x[3], y[0] + y[1], y[2] + y[3])
                                : make_float4(x[0], x[1], x[2], x[3]);
  }
#pragma unroll
  for (int c = 0; c < softmax.kHeads; ++c) {
    share.max[c][lane] = softmax.max[c];
    share.weights[c][lane] = softmax.weights[c];
    share.zeros[c][lane] = softmax.zeros[c];
  }
  if (threadIdx.x == 0) shared.ended = slot;
  __syncwarp();
  if (lane == 0) BarrierArrive(&shared.given);
}

// Adds up the shares of all warps in the order of warps; zeros are accounted for.
template <int kDim, bool kPaired>
__device__ auto TakeShares(const WarpShare<kDim, kPaired> (&shares)[kConsumers]) {
  using Share = WarpShare<kDim, kPaired>;
  constexpr int kHeads = Share::kHeads;
  const int32_t lane = threadIdx.x % kWarpLanes;
  Partial<kHeads, Share::kVectors> sum = {};
  float zeros[kHeads] = {};
#pragma unroll
  for (int c = 0; c < kHeads; ++c) {
    sum.max[c] = shares[0].max[c][lane];
#pragma unroll
    for (int w = 1; w < kConsumers; ++w) sum.max[c] = fmaxf(sum.max[c], shares[w].max[c][lane]);
  }
#pragma unroll 1
  for (int w = 0; w < kConsumers; ++w) {
    const Share& share = shares[w];
    float factor[kHeads];
#pragma unroll
    for (int c = 0; c < kHeads; ++c) {
      factor[c] = Exp2(share.max[c][lane] - sum.max[c]);
      sum.sum[c] = __fmaf_rn(share.weights[c][lane], factor[c], sum.sum[c]);
      zeros[c] = __fmaf_rn(share.zeros[c][lane], factor[c], zeros[c]);
    }
#pragma unroll
    for (int i = 0; i < Share::kVectors; ++i) {
      const float4 x = share.values[i][lane];
      sum.values[i][0] = __fmaf_rn(x.x, factor[0], sum.values[i][0]);
      sum.values[i][1] = __fmaf_rn(x.y, factor[1 % kHeads], sum.values[i][1]);
      sum.values[i][2] = __fmaf_rn(x.z, factor[0], sum.values[i][2]);
      sum.values[i][3] = __fmaf_rn(x.w, factor[1 % kHeads], sum.values[i][3]);
    }
  }
#pragma unroll
  for (int c = 0; c < kHeads; ++c) {
    sum.sum[c] = SumAcrossGroups(sum.sum[c]);
    zeros[c] = SumAcrossGroups(zeros[c]);
  }
#pragma unroll
  for (int i = 0; i < Share::kVectors; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      sum.values[i][j] =
          __fmaf_rn(sum.values[i][j], DiffKvValueUnit(j / kHeads % 2), zeros[j % kHeads]);
    }
  }
  return sum;
}

// Counts one in the field `field` of a head's counter, and returns what the counter was.
__device__ inline uint32_t CountIn(uint32_t& ended, int32_t field) {
  return CountAcquireRelease(&ended, 1u << field * kMergeBits);
}
__device__ inline int32_t CountOf(uint32_t ended, int32_t field) {
  return static_cast<int32_t>(ended >> field * kMergeBits & ((1u << kMergeBits) - 1));
}

// Counts a split of a merge; true if it was the last, so that they can be merged. Says whether the
// head's other merges are done.
__device__ inline bool CountsLastSplit(Merge& merge, uint32_t& ended) {
  const uint32_t before = CountIn(ended, merge.index);
  if (CountOf(before, merge.index) + 1 != merge.size()) return false;
  merge.others_done = CountOf(before, kMaxMerges) + 1 == merge.merges();
  if (merge.others_done) ended = 0;
  return true;
}

// Counts a merge, whose results are stored, of a head whose others were not done before; true if
// they are now.
__device__ inline bool CountsLastMerge(const Merge& merge, uint32_t& ended) {
  const uint32_t before = CountIn(ended, kMaxMerges);
  if (CountOf(before, kMaxMerges) + 1 != merge.merges()) return false;
  ended = 0;
  return true;
}

// Writes the merger's part of the result of a KV head's query heads, from what was folded of its
// splits and what `out` holds of other keys. All warps of a merger.
template <int kDim, bool kPaired, typename Lane>
__device__ void Finish(const Plan& plan,
                       const Workspace& workspace,
                       const Merge& merge,
                       const Folded<Lane, DiffKvPlanes<kPaired>::kHeads>& folded) {
  constexpr int kHeads = DiffKvPlanes<kPaired>::kHeads;
  const DiffKvAttentionRow& row = plan.params.rows[merge.row];
  const Columns columns = ColumnsOf(plan, merge.head);
  const int32_t column = Lane::in_group() * kHeads;  // the lane's first
  auto* const out = static_cast<uint16_t*>(plan.params.out) + row.row * plan.params.out_stride +
                    (columns.begin + column) * kDim;
  float others[kHeads];
#pragma unroll
  for (int c = 0; c < kHeads; ++c) {
    const bool prior = row.lse != nullptr && column + c < columns.count;
    others[c] = prior ? row.lse[columns.begin + column + c] * kLog2E : -INFINITY;
  }
  Lane::Synchronise();  // log-sum-exps have been read, before any is written
  const int32_t part = Lane::part();
  if (part >= Lane::kParts) return;
  const auto dim_of = [&](int i, int j) {
    return 8 * (4 / kHeads * Lane::vector(part, i) + j / kHeads) + Lane::group();
  };
#pragma unroll
  for (int c = 0; c < kHeads; ++c) {
    if (column + c >= columns.count) continue;
    const int32_t head = columns.begin + column + c;
    const float lse = FinishHead<Lane>(folded, c, others[c], dim_of, out + c * kDim);
    if (part < Lane::kParts - 1 || Lane::index() >= Lane::kLaneHeads) continue;
    workspace.lse(plan.params.num_rows, merge.row, head) = lse;
    if (row.lse != nullptr) row.lse[head] = lse * kLn2;
  }
}

// A warp: merges `count` partial results, `stride` floats apart: to the head's results if they are
// all that there is of it (`last`), else to a partial result of the merge's own.
template <int kDim, bool kPaired, int kLanes>
__device__ void MergeByWarp(const Plan& plan,
                            const Workspace& workspace,
                            const Merge& merge,
                            const float* from,
                            int64_t stride,
                            int32_t count,
                            bool last) {
  using Share = WarpShare<kDim, kPaired>;
  using Lane = MergingLane<Share::kVectors, kLanes, Merger::kWarp>;
  const auto folded = FoldPartials<Lane, Share::kHeads>(from, stride, count, 0);
  if (last) {
    Finish<kDim, kPaired, Lane>(plan, workspace, merge, folded);
  } else {
    StoreFolded<Lane>(folded, 0, workspace.merged(merge));
  }
}

// The computing warps: merges splits, and if these were the last of a head that has more the
// results of all its merges; `counted_last` is in shared memory.
template <int kDim, bool kPaired, int kLanes>
__device__ void MergeByBlock(const Plan& plan,
                             const Workspace& workspace,
                             const Merge& merge,
                             Counters& counters,
                             bool& counted_last) {
  using Share = WarpShare<kDim, kPaired>;
  using Lane = MergingLane<Share::kVectors, kLanes, Merger::kBlock>;
  const bool has_part = Lane::part() < Lane::kParts;
  const float* from = workspace.partial(merge.row, merge.head, merge.first());
  int32_t count = merge.size();
  int32_t known = -1;
  Folded<Lane, Share::kHeads> folded = {};
  for (bool last = merge.alone();; last = true) {
    if (has_part) {
      folded = FoldPartials<Lane, Share::kHeads>(
          from, workspace.partial_floats, count, Lane::part(), known, folded);
    }
    if (last) break;
    if (merge.others_done) {
      known = merge.index;
    } else {
      if (has_part) StoreFolded<Lane>(folded, Lane::part(), workspace.merged(merge));
      Lane::Synchronise();
      if (threadIdx.x == 0) counted_last = CountsLastMerge(merge, counters.of(plan, merge));
      Lane::Synchronise();
      if (!counted_last) return;
    }
    from = workspace.partial(merge.row, merge.head, kMaxSplits);
    count = merge.merges();
  }
  Finish<kDim, kPaired, Lane>(plan, workspace, merge, folded);
}

// Calls run(lanes), where lanes.value is workspace.lanes.
template <bool kPaired, typename Run>
__device__ void WithLanes(const Workspace& workspace, Run run) {
  if (kPaired && workspace.lanes == 1) {
    run(std::integral_constant<int, 1>());
  } else if (kPaired && workspace.lanes == 2) {
    run(std::integral_constant<int, 2>());
  } else {
    run(std::integral_constant<int, 4>());
  }
}

}  // namespace baton::kernels::cuda::diffkv
