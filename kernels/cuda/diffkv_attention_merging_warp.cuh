// The merging warp of diffkv_attention: prepares the block's splits, adds up what the computing
// warps found of them, and merges splits whose last one the block has ended.
#pragma once

#include <cstdint>

#include "kernels/cuda/device_code.h"
#include "kernels/cuda/diffkv_attention_merge.cuh"
#include "kernels/cuda/diffkv_attention_partial.cuh"
#include "kernels/cuda/diffkv_attention_plan.cuh"
#include "kernels/cuda/diffkv_attention_prepare.cuh"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/ptx_bulk_copy.cuh"
#include "kernels/cuda/warp.cuh"

namespace baton::kernels::cuda::diffkv {

// Prepares the next split when the one at hand has few pages left to fetch. Splits that have ended
// are counted and merged when nothing waits for it, and it waits for nothing that these read: while
// copies of pages are on their way everything else takes long. All lanes of a warp.
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
    // A split has two phases: the next one is wanted; all shares of its own are there. One loop for
    // both and for what is left at the end, so that the code of Step is there once.
    for (int32_t phase = 0;; ++phase) {
      const int32_t ordinal = phase / 2;
      const bool wanted = phase % 2 == 0;
      const bool leaves = wanted && !preparer.more();
      if (leaves) Leave();
      Await(leaves ? nullptr : wanted ? &shared_.wanted : &shared_.given, ordinal);
      if (leaves) break;
      if (wanted) {
        preparer.Next(ordinal + 1);
      } else {
        TakeSplit();
      }
    }
  }

 private:
  __device__ static int32_t lane() { return static_cast<int32_t>(threadIdx.x % kWarpLanes); }
  // Whether a barrier's `ordinal`-th phase has ended.
  __device__ static bool Ended(uint64_t* barrier, int32_t ordinal) {
    return __shfl_sync(kAllLanes, HasPhaseEnded(barrier, ordinal & 1), 0);
  }

  // Waits for the `ordinal`-th phase, and counts and merges while that has not ended; without a
  // barrier until what is ready is merged.
  __device__ void Await(uint64_t* barrier, int32_t ordinal) {
    while (StepsBefore(barrier, ordinal)) Step();
    if (barrier != nullptr) BarrierWait(barrier, ordinal & 1);
  }

  // Whether a step comes first: the phase has not ended, or no more can be put off.
  __device__ bool StepsBefore(uint64_t* barrier, int32_t ordinal) {
    if (uncounted_ == kWarpLanes) return true;
    if (barrier == nullptr) return ready_ != 0;
    return (ready_ != 0 || uncounted_ != 0) && !Ended(barrier, ordinal);
  }

  // Does one thing of those that can wait.
  __device__ void Step() {
    if (ready_ == 0) {
      Count();
    } else if (Landed()) {
      MergeLanded();
    }
  }

  // Adds up what the warps found of a split, and stores it.
  __device__ void TakeSplit() {
    // The next one's end is written when this one's shares have been taken.
    const Slot slot = shared_.ended;
    const auto partial = TakeShares(shared_.shares);
    __syncwarp();
    if (lane() == 0) BarrierArrive(&shared_.free);
    StorePartial(partial, workspace_.lanes, workspace_.partial(slot.row, slot.head, slot.split));
    if (lane() == uncounted_) {
      own_ = {.row = slot.row,
              .head = slot.head,
              .splits = slot.splits,
              .index = static_cast<int16_t>(slot.split / kMergedSplits),
              .others_done = false};
    }
    ++uncounted_;
  }

  // Whether what each lane below uncounted_ has can be merged, as its split was the last of it.
  __device__ bool CountOwn() {
    __syncwarp();
    const bool last = lane() < uncounted_ && CountsLastSplit(own_, counters_.of(plan_, own_));
    uncounted_ = 0;
    return last;
  }

  __device__ void Count() {
    ready_ = __ballot_sync(kAllLanes, CountOwn());
    ready_merges_ = own_;
    if (ready_ != 0) Begin();
  }

  // Counts the rest, and leaves what can be merged to the computing warps.
  __device__ void Leave() {
    const bool last = CountOwn();
    const uint32_t all = __ballot_sync(kAllLanes, last);
    if (last) shared_.left.merges[__popc(all & ((1u << lane()) - 1))] = own_;
    shared_.left.count = __popc(all);
    __syncwarp();
    if (lane() == 0) BarrierArrive(&shared_.left.complete);
  }

  // Begins with the first merge that is ready.
  __device__ void Begin() {
    const int32_t from = __ffs(static_cast<int32_t>(ready_)) - 1;
    merge_ = {__shfl_sync(kAllLanes, ready_merges_.row, from),
              __shfl_sync(kAllLanes, ready_merges_.head, from),
              __shfl_sync(kAllLanes, ready_merges_.splits, from),
              static_cast<int16_t>(__shfl_sync(kAllLanes, ready_merges_.index, from)),
              __shfl_sync(kAllLanes, ready_merges_.others_done, from) != 0};
    last_ = merge_.alone();
    Bring(merge_.first(), merge_.size());
  }

  // Starts copies of partial results, `first` and those behind it as the workspace counts them.
  __device__ void Bring(int32_t first, int32_t count) {
    from_ = workspace_.partial(merge_.row, merge_.head, first);
    count_ = count;
    if constexpr (kHopperCode) {
      const auto bytes = static_cast<uint32_t>(workspace_.partial_floats * sizeof(float));
      CopyEngineFence();
      if (lane() == 0) BarrierArriveAndExpect(&shared_.landed, count * bytes);
      __syncwarp();
      if (lane() < count) {
        BulkCopy(shared_.landing[lane()],
                 from_ + lane() * workspace_.partial_floats,
                 bytes,
                 &shared_.landed,
                 ReadOncePolicy());
      }
    }
  }

  __device__ bool Landed() const { return !kHopperCode || Ended(&shared_.landed, landings_); }

  // Merges what has landed, and goes on to what can be merged by that or is ready behind it.
  __device__ void MergeLanded() {
    constexpr int64_t kLandingFloats = sizeof(shared_.landing[0]) / sizeof(float);
    // It has ended; every lane has to have seen that.
    if constexpr (kHopperCode) BarrierWait(&shared_.landed, landings_ & 1);
    ++landings_;
    WithLanes<kPaired>(workspace_, [&](auto lanes) {
      MergeByWarp<kDim, kPaired, lanes.value>(
          plan_,
          workspace_,
          merge_,
          kHopperCode ? shared_.landing[0] : from_,
          kHopperCode ? kLandingFloats : workspace_.partial_floats,
          count_,
          last_);
    });
    __syncwarp();
    if (!last_) {
      last_ = merge_.others_done || CountMerged();
      if (last_) return Bring(kMaxSplits, merge_.merges());
    }
    ready_ &= ready_ - 1;
    if (ready_ != 0) Begin();
  }

  // CountsLastMerge of what the warp has merged.
  __device__ bool CountMerged() {
    const bool last = lane() == 0 && CountsLastMerge(merge_, counters_.of(plan_, merge_));
    return __shfl_sync(kAllLanes, last, 0);
  }

  const Plan& plan_;
  const Workspace& workspace_;
  Counters& counters_;
  Shared<kDim, kPaired>& shared_;
  Merge own_ = {};  // that of the split of this lane's number that is not counted
  int32_t uncounted_ = 0;
  Merge ready_merges_ = {};  // of the lanes of `ready_`
  uint32_t ready_ = 0;       // the first one's partial results are landing
  Merge merge_ = {};         // that one
  const float* from_ = nullptr;
  int32_t count_ = 0;
  bool last_ = false;  // what lands is all there is of the head
  int32_t landings_ = 0;
};

}  // namespace baton::kernels::cuda::diffkv
