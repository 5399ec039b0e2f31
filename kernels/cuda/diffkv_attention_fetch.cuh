// The fetching warp of diffkv_attention: walks over the splits and puts their pages into the ring,
// as far ahead as there is room, also past the end of a split.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/diffkv_attention_plan.cuh"
#include "kernels/cuda/diffkv_queries.cuh"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/ptx_bulk_copy.cuh"
#include "kernels/kv_format/diffkv.h"
#include "kernels/ops/diffkv_pages.h"
#include "kernels/ops/diffkv_params.h"

namespace baton::kernels::cuda::diffkv {

// One split of one head.
struct Item {
  int32_t row;
  int32_t head;  // as in Slot
  int32_t split;
  Cut cut;

  __device__ int32_t begin() const { return cut.begin(split); }
  __device__ int32_t end() const { return min(cut.begin(split + 1), cut.pages); }
};

__device__ inline Cut FromLane(const Cut& cut, int32_t lane) {
  return {.tokens = {__shfl_sync(0xffffffffu, cut.tokens[0], lane),
                     __shfl_sync(0xffffffffu, cut.tokens[1], lane)},
          .high_pages = __shfl_sync(0xffffffffu, cut.high_pages, lane),
          .pages = __shfl_sync(0xffffffffu, cut.pages, lane),
          .long_pages = __shfl_sync(0xffffffffu, cut.long_pages, lane),
          .long_splits = __shfl_sync(0xffffffffu, cut.long_splits, lane),
          .splits = __shfl_sync(0xffffffffu, cut.splits, lane)};
}

// All lanes: the `index`-th item; long splits of all heads come before short ones.
template <int kDim, bool kPaired>
__device__ Item FindItem(const Plan& plan, const Shared<kDim, kPaired>& shared, int32_t index) {
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
    int32_t through = head < plan.heads() ? splits : 0;
    for (int32_t step = 1; step < 32; step *= 2) {
      const int32_t other = __shfl_up_sync(0xffffffffu, through, step);
      through += lane >= step ? other : 0;
    }
    const uint32_t beyond = __ballot_sync(0xffffffffu, through > rest);
    if (beyond != 0) {
      const int32_t found = __ffs(static_cast<int32_t>(beyond)) - 1;
      return {.row = row,
              .head = first + found,
              .split = rest - __shfl_sync(0xffffffffu, through - splits - before, found),
              .cut = FromLane(cut, found)};
    }
    rest -= __shfl_sync(0xffffffffu, through, 31);
  }
}

// The slot of page `page` of an item, high pages before low, whose id the caller knows; -1: no
// page.
__device__ inline Slot DescribePage(const Plan& plan, const Item& item, int32_t page, int32_t id) {
  Slot slot = {.page = nullptr,
               .tokens = 0,
               .first_token = 0,
               .row = item.row,
               .head = item.head,
               .split = static_cast<int16_t>(item.split),
               .splits = static_cast<int16_t>(item.cut.splits),
               .flags = 0};
  if (id >= 0) {
    const bool high = page < item.cut.high_pages;
    const int32_t begin = high ? page * plan.page_tokens[kDiffKvHigh]
                               : (page - item.cut.high_pages) * plan.page_tokens[kDiffKvLow];
    slot.page =
        plan.params.pages.base + static_cast<size_t>(id) * plan.params.pages.geometry.page_bytes();
    slot.flags = high ? 0 : kLowTier;
    slot.tokens = high ? min(item.cut.tokens[kDiffKvHigh] - begin, plan.page_tokens[kDiffKvHigh])
                       : min(item.cut.tokens[kDiffKvLow] - begin, plan.page_tokens[kDiffKvLow]);
    slot.first_token = begin + (high ? 0 : item.cut.tokens[kDiffKvHigh]);
  }
  return slot;
}

// The id of page `page` of an item; -1: there is none.
__device__ inline int32_t PageIdOf(const Plan& plan,
                                   const DiffKvLayer& layer,
                                   const Item& item,
                                   int32_t page) {
  const int32_t kv_head = item.head / plan.column_groups;
  if (page >= item.end()) return -1;
  return page < item.cut.high_pages
             ? DiffKvPageId(layer, kv_head, kDiffKvHigh, page)
             : DiffKvPageId(layer, kv_head, kDiffKvLow, page - item.cut.high_pages);
}

// Lanes below kConsumers: where in the ring the lane's slot of a round is.
template <int kDim, bool kPaired>
__device__ int32_t PlaceOf(int32_t round) {
  return round % Shared<kDim, kPaired>::kRounds * kConsumers +
         static_cast<int32_t>(threadIdx.x % 32);
}

// Waits until a round's places are free.
template <int kDim, bool kPaired>
__device__ void AwaitPlaces(int32_t round, Shared<kDim, kPaired>& shared) {
  constexpr int32_t kRounds = Shared<kDim, kPaired>::kRounds;
  BarrierWait(&shared.empty[round % kRounds], (round / kRounds & 1) ^ 1);
}

// Lanes below kConsumers: puts a slot into its place, and starts the copy.
template <int kDim, bool kPaired>
__device__ void Start(const Plan& plan,
                      const Slot& slot,
                      int32_t round,
                      Shared<kDim, kPaired>& shared) {
  const int32_t place = PlaceOf<kDim, kPaired>(round);
  shared.slots[place] = slot;
  if (slot.tokens > 0) {
    BulkCopy(shared.pages[place],
             slot.page,
             plan.read_bytes[slot.flags & kLowTier],
             &shared.full[place],
             ReadOncePolicy());
  }
}

// Lanes below kConsumers, after Start: the slot may be looked at when its page is there. Bytes may
// have come before they are expected.
template <int kDim, bool kPaired>
__device__ void Publish(const Plan& plan,
                        const Slot& slot,
                        int32_t round,
                        Shared<kDim, kPaired>& shared) {
  uint64_t* full = &shared.full[PlaceOf<kDim, kPaired>(round)];
  if (slot.tokens > 0) {
    BarrierArriveAndExpect(full, plan.read_bytes[slot.flags & kLowTier]);
    BulkCopiesStarted(full);
  } else {
    BarrierArrive(full);
  }
}

// What the fetching warp knows of an item before its pages have room: all that takes a chain of
// reads from global memory.
template <int kDim>
struct Ahead {
  Item item;
  DiffKvLayer layer;
  int32_t id;          // of page item.begin() + lane
  uint4 q[kDim / 32];  // of the lane's query (RoundQueries)
};

template <int kDim, bool kPaired>
__device__ Ahead<kDim> LookAhead(const Plan& plan,
                                 const Shared<kDim, kPaired>& shared,
                                 int32_t index) {
  const int32_t lane = threadIdx.x % 32;
  Ahead<kDim> ahead;
  ahead.item = FindItem(plan, shared, index);
  const DiffKvAttentionRow& row = plan.params.rows[ahead.item.row];
  ahead.layer = row.layer;
  ahead.id = PageIdOf(plan, ahead.layer, ahead.item, ahead.item.begin() + lane);
  const Columns columns = ColumnsOf(plan, ahead.item.head);
  const int32_t head = lane / (kPaired ? 8 : 4);
  const auto* q =
      static_cast<const std::byte*>(plan.params.q) +
      (row.row * plan.params.q_stride + (columns.begin + head) * kDim + lane % 4 * (kDim / 4)) * 2;
#pragma unroll
  for (int i = 0; i < kDim / 32; ++i) {
    ahead.q[i] = head < columns.count ? reinterpret_cast<const uint4*>(q)[i] : uint4{};
  }
  return ahead;
}

// Makes the operands of an item's queries, for every width of its keys.
template <int kDim, bool kPaired>
__device__ void PrepareItem(const Plan& plan,
                            const Ahead<kDim>& ahead,
                            DiffKvQueries<kDim, kPaired> (&queries)[kKeyWidths]) {
  const DiffKvTier* tiers = plan.params.pages.geometry.tiers;
  const float scale = plan.params.scale * kLog2E;
  const DiffKvQueryShare<kDim> share = RoundQueries<kDim>(ahead.q);
  if (tiers[0].key_bits == 8 || tiers[1].key_bits == 8) {
    StoreQueries<kDim, 8>(share, scale, queries[KeyWidth({8, 8})]);
  }
  if (tiers[0].key_bits == 4 || tiers[1].key_bits == 4) {
    StoreQueries<kDim, 4>(share, scale, queries[KeyWidth({4, 4})]);
  }
  __syncwarp();
}

// Puts an item's pages from `page` on into the ring, a round, as the block's `ordinal`-th split.
template <int kDim, bool kPaired>
__device__ void FetchRound(const Plan& plan,
                           const Ahead<kDim>& ahead,
                           int32_t ordinal,
                           int32_t page,
                           int32_t id,
                           int32_t round,
                           Shared<kDim, kPaired>& shared) {
  const int32_t lane = threadIdx.x % 32;
  const Item& item = ahead.item;
  const int32_t own = __shfl_sync(0xffffffffu, id, ((page - item.begin()) % 32 + lane) % 32);
  Slot slot = DescribePage(plan, item, page + lane, own);
  const bool begins = page == item.begin();
  slot.flags |= (page + kConsumers >= item.end() ? kEnds : 0) |
                static_cast<uint32_t>(ordinal % Shared<kDim, kPaired>::kRounds) << kQueryShift;
  AwaitPlaces(round, shared);
  if (lane < kConsumers) Start(plan, slot, round, shared);
  // Splits of kRounds before have no page in the ring any more.
  if (begins) PrepareItem(plan, ahead, shared.queries[ordinal % Shared<kDim, kPaired>::kRounds]);
  if (lane < kConsumers) Publish(plan, slot, round, shared);
  __syncwarp();
}

// The next item is looked at when the first pages of this one are on their way.
template <int kDim, bool kPaired>
__device__ void Fetch(const Plan& plan, Counters& counters, Shared<kDim, kPaired>& shared) {
  const int32_t lane = threadIdx.x % 32;
  const int32_t items = shared.items[2 * plan.params.num_rows];
  // Lane 0 asks for the item after the next one early, too. The first items are dealt.
  const auto take = [&] {
    return lane == 0 ? static_cast<int32_t>(gridDim.x + atomicAdd(&counters.items_taken, 1u)) : 0;
  };
  auto index = static_cast<int32_t>(blockIdx.x);
  int32_t round = 0;
  Ahead<kDim> next = {};
  int32_t taken = take();
  if (index < items) next = LookAhead<kDim, kPaired>(plan, shared, index);
  for (int32_t ordinal = 0; index < items; ++ordinal) {
    const Ahead<kDim> now = next;
    const int32_t begin = now.item.begin();
    int32_t id = now.id;
    for (int32_t page = begin; page == begin || page < now.item.end(); page += kConsumers) {
      if (page != begin && (page - begin) % 32 == 0) {
        id = PageIdOf(plan, now.layer, now.item, page + lane);
      }
      FetchRound(plan, now, ordinal, page, id, round++, shared);
      if (page != begin) continue;
      index = __shfl_sync(0xffffffffu, taken, 0);
      taken = take();
      if (index < items) next = LookAhead<kDim, kPaired>(plan, shared, index);
    }
  }
  AwaitPlaces(round, shared);
  if (lane < kConsumers) {
    const Slot stop = {.flags = kStop};
    Start(plan, stop, round, shared);
    Publish(plan, stop, round, shared);
  }
  // What the last block puts back, no block counts on after that.
  if (lane == 0) __threadfence();
  if (lane == 0 && atomicAdd(&counters.blocks_done, 1u) + 1 == gridDim.x) {
    counters.items_taken = 0;
    counters.blocks_done = 0;
  }
}

}  // namespace baton::kernels::cuda::diffkv
