// The fetching warp of diffkv_attention: puts the pages of splits into the ring as far ahead as
// there is room, also past the end of a split. What it has to know of them is looked up ahead by
// others, or a while before it is needed: reads from global memory take long while copies are on
// their way.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/diffkv_attention_plan.cuh"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/ptx_bulk_copy.cuh"
#include "kernels/cuda/ring_place.cuh"
#include "kernels/kv_format/diffkv.h"
#include "kernels/ops/diffkv_params.h"

namespace baton::kernels::cuda::diffkv {

// The slot of page `page` of a split, high pages before low, whose id the caller knows; -1: no
// page.
__device__ inline Slot DescribePage(const Plan& plan, const Work& work, int32_t page, int32_t id) {
  Slot slot = {.page = nullptr,
               .tokens = 0,
               .first_token = 0,
               .index = page,
               .row = work.row,
               .head = work.head,
               .split = static_cast<uint8_t>(work.split),
               .splits = static_cast<uint8_t>(work.cut.splits.count),
               .flags = 0};
  if (id >= 0) {
    const bool high = page < work.cut.high_pages;
    const int32_t begin = high ? page * plan.page_tokens[kDiffKvHigh]
                               : (page - work.cut.high_pages) * plan.page_tokens[kDiffKvLow];
    slot.page =
        plan.params.pages.base + static_cast<size_t>(id) * plan.params.pages.geometry.page_bytes();
    slot.flags = high ? 0 : kLowTier;
    slot.tokens = high ? min(work.cut.tokens[kDiffKvHigh] - begin, plan.page_tokens[kDiffKvHigh])
                       : min(work.cut.tokens[kDiffKvLow] - begin, plan.page_tokens[kDiffKvLow]);
    slot.first_token = begin + (high ? 0 : work.cut.tokens[kDiffKvHigh]);
  }
  return slot;
}

template <int kDim, bool kPaired>
using FetchPlace = RingPlace<Shared<kDim, kPaired>::kRounds>;

// Lanes below kConsumers: puts a slot into its place, which is free, and starts the copy.
template <int kDim, bool kPaired>
__device__ void Start(const Plan& plan,
                      const Slot& slot,
                      int32_t place,
                      Shared<kDim, kPaired>& shared) {
  const int32_t lane = threadIdx.x % 32;
  shared.slots[place][lane] = slot;
  if (slot.tokens > 0) {
    BulkCopy(shared.pages[place][lane],
             slot.page,
             plan.read_bytes[slot.flags & kLowTier],
             &shared.full[place][lane],
             ReadOncePolicy());
  }
}

// Lanes below kConsumers, after Start: the slot may be looked at when its page is there. Bytes may
// have come before they are expected.
template <int kDim, bool kPaired>
__device__ void Publish(const Plan& plan,
                        const Slot& slot,
                        int32_t place,
                        Shared<kDim, kPaired>& shared) {
  uint64_t* full = &shared.full[place][threadIdx.x % 32];
  if (slot.tokens > 0) {
    BarrierArriveAndExpect(full, plan.read_bytes[slot.flags & kLowTier]);
    BulkCopiesStarted(full);
  } else {
    BarrierArrive(full);
  }
}

// Waits until a round's place is free.
template <int kDim, bool kPaired>
__device__ void Await(const FetchPlace<kDim, kPaired>& round, Shared<kDim, kPaired>& shared) {
  BarrierWait(&shared.empty[round.place], round.parity ^ 1);
}

// Puts a round of pages, those from `page` on, whose ids are there, into the ring.
template <int kDim, bool kPaired>
__device__ void FetchRound(const Plan& plan,
                           Work& work,
                           int32_t ordinal,
                           int32_t page,
                           FetchPlace<kDim, kPaired>& round,
                           Shared<kDim, kPaired>& shared) {
  const int32_t lane = threadIdx.x % 32;
  const int32_t own = page + lane % kConsumers;
  Slot slot = DescribePage(plan, work, own, *work.id_of(own));
  slot.flags |= static_cast<uint8_t>(ordinal % 2 << kQueryBit);
  if (page == work.begin()) slot.flags |= kBegins;
  if (page + kConsumers >= work.end()) slot.flags |= kEnds;
  Await<kDim, kPaired>(round, shared);
  if (lane < kConsumers) {
    Start(plan, slot, round.place, shared);
    Publish(plan, slot, round.place, shared);
  }
  round.Next();
  __syncwarp();
}

// Puts the pages of the block's `ordinal`-th split into the ring. Their ids come 32 at a time,
// while the 32 before are used.
template <int kDim, bool kPaired>
__device__ void FetchSplit(const Plan& plan,
                           Work& work,
                           int32_t ordinal,
                           FetchPlace<kDim, kPaired>& round,
                           Shared<kDim, kPaired>& shared) {
  const int32_t begin = work.begin();
  // Behind the last round `work` may be of another split.
  const int32_t end = work.end();
  bool told = false;
  for (int32_t page = begin; page == begin || page < end; page += kConsumers) {
    if (!told && end - page <= kPagesAhead) {
      if (threadIdx.x % 32 == 0) BarrierArrive(&shared.wanted);
      told = true;
    }
    if ((page - begin) % 32 == 0) {
      WaitForCopies<0>();
      __syncwarp();
      BringIds(plan, work, page + 32);
    }
    FetchRound(plan, work, ordinal, page, round, shared);
  }
}

template <int kDim, bool kPaired>
__device__ void Fetch(const Plan& plan, Shared<kDim, kPaired>& shared) {
  FetchPlace<kDim, kPaired> round;
  for (int32_t ordinal = 0;; ++ordinal) {
    BarrierWait(&shared.found[ordinal % 2], ordinal / 2 & 1);
    Work& work = shared.work[ordinal % 2];
    if (work.row < 0) break;
    FetchSplit(plan, work, ordinal, round, shared);
  }
  Await<kDim, kPaired>(round, shared);
  if (threadIdx.x % 32 < kConsumers) {
    const Slot stop = {.flags = kStop};
    Start(plan, stop, round.place, shared);
    Publish(plan, stop, round.place, shared);
  }
}

}  // namespace baton::kernels::cuda::diffkv
