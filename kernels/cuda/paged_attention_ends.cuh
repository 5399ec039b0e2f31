// The end of splits that are items: computing warps hand in a partial result and go on; a warp of
// its own counts it, which takes microseconds while copies fill the multiprocessor's queue of
// requests.
#pragma once

#include <cstdint>

#include "kernels/cuda/paged_attention_work.cuh"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/ring_place.cuh"
#include "kernels/cuda/warp.cuh"

namespace baton::kernels::cuda::paged {

// A row and KV head whose splits are items.
struct CutHead {
  int32_t row;  // -1: no split is left
  int32_t kv_head;
  int32_t splits;
  int32_t slot;  // of the first split
};

// What the computing warps and the counting one share.
struct SplitEnds {
  // Splits that are handed in and not counted yet.
  static constexpr int32_t kHandedIn = 2;
  // Heads that are complete and not merged yet: no more than splits can be counted from one look at
  // them to the next.
  static constexpr int32_t kComplete = 4;

  CutHead handed_in[kHandedIn];
  CutHead complete[kComplete];
  uint64_t full[kHandedIn];
  uint64_t empty[kHandedIn];
  uint64_t counted;             // all that were handed in
  volatile uint32_t completed;  // heads, by splits that were handed in
  uint32_t to_merge;            // `completed` when thread 0 looked last

  // One thread, before the others use it.
  __device__ void Init() {
    for (int i = 0; i < kHandedIn; ++i) {
      BarrierInit(&full[i], 1);
      BarrierInit(&empty[i], 1);
    }
    BarrierInit(&counted, 1);
    completed = 0;
  }
};

// The counting warp.
__device__ inline void CountSplits(uint32_t* counters, SplitEnds& ends) {
  if (threadIdx.x % kWarpLanes != 0) return;
  uint32_t completed = 0;
  for (RingPlace<SplitEnds::kHandedIn> ring;; ring.Next()) {
    BarrierWait(&ends.full[ring.place], ring.parity);
    const CutHead head = ends.handed_in[ring.place];
    BarrierArrive(&ends.empty[ring.place]);
    if (head.row < 0) break;
    if (!CountsLast(counters + kGroupCounter + head.slot, head.splits)) continue;
    ends.complete[completed % SplitEnds::kComplete] = head;
    __threadfence_block();
    ends.completed = ++completed;
  }
  BarrierArrive(&ends.counted);
}

// Hands a split in whose partial result is stored, or says that there are no more. Thread 0 alone.
__device__ inline void HandIn(const CutHead& head,
                              RingPlace<SplitEnds::kHandedIn>& ring,
                              SplitEnds& ends) {
  BarrierWait(&ends.empty[ring.place], ring.parity ^ 1);
  ends.handed_in[ring.place] = head;
  BarrierArrive(&ends.full[ring.place]);
  ring.Next();
}

}  // namespace baton::kernels::cuda::paged
