// The end of splits in diffkv_attention: computing warps give what they found and go on; the
// merging warp adds it up, and merges a head's splits when it has ended the last of them.
#pragma once

#include <cstdint>

#include "kernels/cuda/diffkv_attention_partial.cuh"
#include "kernels/cuda/diffkv_attention_plan.cuh"
#include "kernels/cuda/diffkv_attention_prepare.cuh"
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

// The result of a KV head's query heads from the partial ones of its splits, and from what `out`
// holds of other keys.
template <int kDim, bool kPaired, int kLanes, Merger kMerger>
__device__ void MergeLanes(const Plan& plan, const Workspace& workspace, const DoneHead& done) {
  using Share = WarpShare<kDim, kPaired>;
  using Lane = MergingLane<Share::kVectors, kLanes, kMerger>;
  constexpr int kHeads = Share::kHeads;
  const DiffKvAttentionRow& row = plan.params.rows[done.row];
  const Columns columns = ColumnsOf(plan, done.head);
  const int32_t column = Lane::in_group() * kHeads;  // the lane's first
  auto* const out = static_cast<uint16_t*>(plan.params.out) + row.row * plan.params.out_stride +
                    (columns.begin + column) * kDim;
  float others[kHeads];
#pragma unroll
  for (int c = 0; c < kHeads; ++c) {
    const bool prior = row.lse != nullptr && column + c < columns.count;
    others[c] = prior ? row.lse[columns.begin + column + c] * kLog2E : -INFINITY;
  }
  MergePart<kMerger, Lane::kParts>([&](int32_t part) {
    const auto found = FoldPartials<Lane, kHeads>(
        workspace.partial(done.row, done.head, 0), workspace.partial_floats, done.splits, part);
    const auto dim_of = [&](int i, int j) {
      return 8 * (4 / kHeads * Lane::vector(part, i) + j / kHeads) + Lane::group();
    };
#pragma unroll
    for (int c = 0; c < kHeads; ++c) {
      if (column + c >= columns.count) continue;
      const float lse = FinishHead<Lane>(found, c, others[c], dim_of, out + c * kDim);
      if (part < Lane::kParts - 1 || Lane::index() >= kLanes) continue;
      const int32_t head = columns.begin + column + c;
      workspace.lse(plan.params.num_rows, done.row, head) = lse;
      if (row.lse != nullptr) row.lse[head] = lse * kLn2;
    }
  });
}

template <int kDim, bool kPaired, Merger kMerger>
__device__ void MergeSplits(const Plan& plan, const Workspace& workspace, const DoneHead& done) {
  switch (workspace.lanes) {
    case 1:
      MergeLanes<kDim, kPaired, 1, kMerger>(plan, workspace, done);
      break;
    case 2:
      MergeLanes<kDim, kPaired, 2, kMerger>(plan, workspace, done);
      break;
    default:
      MergeLanes<kDim, kPaired, 4, kMerger>(plan, workspace, done);
      break;
  }
}

// Counts splits whose results are stored, one of each lane below `count`. A head that is complete
// by that the warp merges itself if it has few splits and the computing warps have others to attend
// (not `idle`); else it leaves it to them.
template <int kDim, bool kPaired>
__device__ void CountSplits(const Plan& plan,
                            const Workspace& workspace,
                            const DoneHead& own,
                            int32_t count,
                            bool idle,
                            Counters& counters,
                            Shared<kDim, kPaired>& shared) {
  const auto lane = static_cast<int32_t>(threadIdx.x % kWarpLanes);
  __syncwarp();
  const bool ends =
      lane < count &&
      CountsLast(&counters.splits_done[own.row * plan.heads() + own.head], own.splits);
  const bool left = ends && (idle || own.splits > kFewToMerge) && shared.left.Add(own);
  for (uint32_t rest = __ballot_sync(kAllLanes, ends && !left); rest != 0; rest &= rest - 1) {
    const int32_t from = __ffs(static_cast<int32_t>(rest)) - 1;
    MergeSplits<kDim, kPaired, Merger::kWarp>(plan,
                                              workspace,
                                              {__shfl_sync(kAllLanes, own.row, from),
                                               __shfl_sync(kAllLanes, own.head, from),
                                               __shfl_sync(kAllLanes, own.splits, from)});
  }
}

// The merging warp: prepares the next split when the one at hand has few pages left to fetch, and
// counts those that have ended when nothing waits for it.
template <int kDim, bool kPaired>
class MergingWarp {
 public:
  __device__ MergingWarp(const Plan& plan,
                         const Workspace& workspace,
                         Counters& counters,
                         Shared<kDim, kPaired>& shared)
      : plan_(plan), workspace_(workspace), counters_(counters), shared_(shared) {}

  __device__ void Run() {
    Preparer<kDim, kPaired> preparer(plan_, counters_, shared_);
    preparer.Next(0);
    for (int32_t ordinal = 0; preparer.more(); ++ordinal) {
      Await(&shared_.wanted, ordinal);
      preparer.Next(ordinal + 1);
      Await(&shared_.given, ordinal);
      // The next one's end is written when this one's shares have been taken.
      const Slot slot = shared_.ended;
      TakeSplit(slot);
    }
    Count(true);
    if (lane() == 0) shared_.left.Complete();
  }

 private:
  __device__ static int32_t lane() { return static_cast<int32_t>(threadIdx.x % kWarpLanes); }

  // Waits for the `ordinal`-th phase; counts first if that has not ended.
  __device__ void Await(uint64_t* barrier, int32_t ordinal) {
    const bool waits = __shfl_sync(kAllLanes, HasPhaseEnded(barrier, ordinal & 1), 0);
    if (!waits || uncounted_ == kWarpLanes) Count(false);
    BarrierWait(barrier, ordinal & 1);
  }

  __device__ void Count(bool idle) {
    CountSplits(plan_, workspace_, own_, uncounted_, idle, counters_, shared_);
    uncounted_ = 0;
  }

  // Adds up what the warps found of a split, and stores it.
  __device__ void TakeSplit(const Slot& slot) {
    const auto partial = TakeShares(shared_.shares);
    __syncwarp();
    if (lane() == 0) BarrierArrive(&shared_.free);
    StorePartial(partial, workspace_.lanes, workspace_.partial(slot.row, slot.head, slot.split));
    if (lane() == uncounted_) own_ = {slot.row, slot.head, slot.splits};
    ++uncounted_;
  }

  const Plan& plan_;
  const Workspace& workspace_;
  Counters& counters_;
  Shared<kDim, kPaired>& shared_;
  DoneHead own_ = {};  // the split of this lane's number that is not counted
  int32_t uncounted_ = 0;
};

}  // namespace baton::kernels::cuda::diffkv
