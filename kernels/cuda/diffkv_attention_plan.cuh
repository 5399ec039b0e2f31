// What the blocks of diffkv_attention share: how the work is cut, and the memory of a block.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/device_code.h"
#include "kernels/cuda/diffkv_queries.cuh"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/ptx_tile.cuh"
#include "kernels/cuda/warp.cuh"
#include "kernels/kv_format/diffkv.h"
#include "kernels/ops/diffkv_pages.h"
#include "kernels/ops/diffkv_params.h"

namespace baton::kernels::cuda::diffkv {

// Warps of a block that compute; behind them one fetches, and one prepares splits and merges.
inline constexpr int32_t kConsumers = 4;
inline constexpr int32_t kFetchingWarp = kConsumers;
inline constexpr int32_t kMergingWarp = kConsumers + 1;
inline constexpr int32_t kThreads = 32 * (kConsumers + 2);
// Rounds of a block's ring, each a page for every computing warp. More of them would make requests
// wait for each other: two keep the memory busy.
constexpr int32_t Rounds(int32_t head_dim) { return head_dim == 128 ? 2 : 4; }
// A head has at most kMaxSplits splits, and kFewSplits of them while these have less than
// kFullSplitPages pages: more would write more partial results than they save time, fewer would
// leave multiprocessors idle when there is one sequence. Longer heads have long splits and, for
// their last quarter, short ones of a fourth but of at least kShortPages, which are taken when no
// head has long ones left: what blocks wait for at the end is little.
inline constexpr int32_t kMaxSplits = 33;
inline constexpr int32_t kFewSplits = 4;
inline constexpr int32_t kFullSplitPages = 64;
inline constexpr int32_t kShortPages = 32;
// A long split is at least this part of a head, which makes kMaxSplits at most: of 2,221 pages 13
// long ones of 124 and 20 short ones of 32.
inline constexpr int32_t kLongSplits = 18;
// Pages of a split that are still to be fetched when the block takes its next one: as many as are
// brought while that is found and its queries are made. A block that took it earlier would keep it
// from others that have nothing left to do.
inline constexpr int32_t kPagesAhead = 16;
// A head of at most so many splits is merged by the merging warp that finds it complete.
inline constexpr int32_t kFewToMerge = 8;
// Rows of a launch: the splits of each row are counted in shared memory.
inline constexpr int32_t kMaxRows = 256;

// Bytes at the head of a page that attention reads: codes, scales and zeros.
constexpr size_t ReadBytes(int32_t head_dim, DiffKvTier tier) {
  return DiffKvPageLayout{head_dim, tier}.scores();
}
constexpr size_t SlotBytes(int32_t head_dim) {
  size_t most = 0;
  for (const DiffKvTier tier : {DiffKvTier{8, 8}, {8, 4}, {4, 4}, {4, 2}}) {
    most = ReadBytes(head_dim, tier) > most ? ReadBytes(head_dim, tier) : most;
  }
  return most;
}

// What the fetching warp tells a computing one about a page, or about the absence of one.
struct alignas(16) Slot {
  const std::byte* page;  // in global memory
  int32_t tokens;         // 0: no page
  int32_t first_token;    // its slot among the head's tokens, high before low
  int32_t row;
  int32_t head;  // KV head x column groups + column group
  int16_t split;
  int16_t splits;
  uint32_t flags;
};
inline constexpr uint32_t kLowTier = 1;    // the page is of the low tier
inline constexpr uint32_t kEnds = 2;       // the last round of a split
inline constexpr uint32_t kStop = 4;       // no split is left
inline constexpr uint32_t kBegins = 8;     // the first round of a split
inline constexpr int32_t kQueryShift = 4;  // above it: where the split's queries are

// What a warp found of its pages' softmax, as its lanes hold it: values and the sums are relative
// to the reference.
template <int kDim, bool kPaired>
struct WarpShare {
  static constexpr int kHeads = DiffKvPlanes<kPaired>::kHeads;  // of a lane
  static constexpr int kVectors = kHeads * kDim / 32;

  float4 values[kVectors][32];
  float max[kHeads][32];
  float weights[kHeads][32];
  float zeros[kHeads][32];
};

// The call, with what of it every block would have to divide for.
struct Plan {
  DiffKvAttentionParams params;
  int32_t group;          // query heads of a KV head
  int32_t column_groups;  // the same, eight at a time
  int32_t page_tokens[kDiffKvTiers];
  uint32_t read_bytes[kDiffKvTiers];

  // Heads as a slot counts them.
  __host__ __device__ int32_t heads() const {
    return params.pages.geometry.kv_heads * column_groups;
  }
  // Whether query heads take two columns each (diffkv_queries.cuh).
  __host__ __device__ bool paired() const { return group <= kDiffKvColumns / 2; }
};

inline Plan MakePlan(const DiffKvAttentionParams& params) {
  const DiffKvGeometry& geometry = params.pages.geometry;
  Plan plan = {};
  plan.params = params;
  plan.group = static_cast<int32_t>(params.heads / geometry.kv_heads);
  plan.column_groups = (plan.group + kDiffKvColumns - 1) / kDiffKvColumns;
  for (int32_t tier = 0; tier < kDiffKvTiers; ++tier) {
    plan.page_tokens[tier] = geometry.layout(tier).page_tokens();
    plan.read_bytes[tier] =
        static_cast<uint32_t>(ReadBytes(geometry.head_dim, geometry.tiers[tier]));
  }
  return plan;
}

// How a head's pages are cut: long splits, then short ones.
struct Cut {
  int32_t tokens[kDiffKvTiers];
  int32_t high_pages;
  int32_t pages;  // of both tiers
  int32_t long_pages;
  int32_t long_splits;
  int32_t splits;

  // Of whole rounds of the computing warps, at least one.
  __device__ static int32_t SplitPages(int32_t pages) {
    return max((pages + kConsumers - 1) / kConsumers, 1) * kConsumers;
  }
  __device__ int32_t short_pages() const { return SplitPages(max(long_pages / 4, kShortPages)); }
  // The first page of a split.
  __device__ int32_t begin(int32_t split) const {
    return split < long_splits ? split * long_pages
                               : long_splits * long_pages + (split - long_splits) * short_pages();
  }
};

__device__ inline Cut CutHead(const Plan& plan, const DiffKvLayer& layer, int32_t kv_head) {
  const int2 counts = reinterpret_cast<const int2*>(layer.token_counts)[kv_head];
  Cut cut = {.tokens = {counts.x, counts.y}};
  cut.high_pages = (counts.x + plan.page_tokens[0] - 1) / plan.page_tokens[0];
  cut.pages = cut.high_pages + (counts.y + plan.page_tokens[1] - 1) / plan.page_tokens[1];
  if (cut.pages <= kFewSplits * kFullSplitPages) {
    cut.long_pages = Cut::SplitPages((cut.pages + kFewSplits - 1) / kFewSplits);
    // A head without tokens has one split too, which writes its results.
    cut.long_splits = max((cut.pages + cut.long_pages - 1) / cut.long_pages, 1);
    cut.splits = cut.long_splits;
  } else {
    const int32_t even = (cut.pages + kLongSplits - 1) / kLongSplits;
    cut.long_pages = Cut::SplitPages(max(even, kFullSplitPages));
    cut.long_splits = cut.pages / 4 * 3 / cut.long_pages;
    const int32_t rest = cut.pages - cut.long_splits * cut.long_pages;
    cut.splits = cut.long_splits + (rest + cut.short_pages() - 1) / cut.short_pages();
  }
  return cut;
}
static_assert(kDiffKvTiers == 2, "a head's counts are read at once");

// A split as the fetching warp gets it.
struct Work {
  int32_t row;   // -1: there is none
  int32_t head;  // as in Slot
  int32_t split;
  Cut cut;
  DiffKvLayer layer;
  int32_t ids[64];  // of pages, at the numbers that these have in the split, modulo 64

  __device__ int32_t begin() const { return cut.begin(split); }
  __device__ int32_t end() const { return min(cut.begin(split + 1), cut.pages); }
  __device__ int32_t* id_of(int32_t page) { return ids + (page - begin()) % 64; }
};

// Starts reads of the ids of a split's pages from `first` on, as many as there are lanes; -1 where
// there is no page. They are there after WaitForCopies. All lanes.
__device__ inline void BringIds(const Plan& plan, Work& work, int32_t first) {
  const int32_t page = first + static_cast<int32_t>(threadIdx.x % 32);
  int32_t* const id = work.id_of(page);
  if (page < work.end()) {
    const int32_t kv_head = work.head / plan.column_groups;
    const bool high = page < work.cut.high_pages;
    CopyAsync4(id,
               &DiffKvPageId(work.layer,
                             kv_head,
                             high ? kDiffKvHigh : kDiffKvLow,
                             high ? page : page - work.cut.high_pages));
  } else {
    *id = -1;
  }
  CommitCopies();
}

// A head whose splits have all ended.
struct DoneHead {
  int32_t row;
  int32_t head;  // as in Slot
  int32_t splits;
};

// Heads that a block's computing warps merge when the block has nothing else to do: partial results
// of many splits take long to be read while copies fill the multiprocessor's queue.
struct LeftHeads {
  static constexpr int32_t kMax = 8;

  DoneHead heads[kMax];
  int32_t count;
  uint64_t complete;  // no more will come

  // One thread, before the others use it.
  __device__ void Init() {
    count = 0;
    BarrierInit(&complete, 1);
  }
  // The merging warp alone adds; false if it is full. Any of its lanes.
  __device__ bool Add(const DoneHead& head) {
    const int32_t place = atomicAdd(&count, 1);
    if (place < kMax) heads[place] = head;
    return place < kMax;
  }
  __device__ void Complete() { BarrierArrive(&complete); }
  // The computing warps: merge(head) for all.
  template <typename Merge>
  __device__ void Drain(Merge merge) {
    BarrierWait(&complete, 0);
    for (int32_t i = 0; i < min(count, kMax); ++i) merge(heads[i]);
  }
};

template <int kDim, bool kPaired>
struct alignas(128) Shared {
  static constexpr int32_t kRounds = Rounds(kDim);

  std::byte pages[kRounds][kConsumers][SlotBytes(kDim)];
  Slot slots[kRounds][kConsumers];
  uint64_t full[kRounds][kConsumers];
  uint64_t empty[kRounds];  // each warp has left its slot of the round
  // Of the split at hand and the one behind it, in turns.
  Work work[2];
  DiffKvQueries<kDim, kPaired> queries[2];
  uint64_t found[2];  // `work` is there, and its first ids are
  uint64_t asked[2];  // `queries` are there
  uint64_t wanted;    // the next split: the one at hand has few pages left to fetch
  WarpShare<kDim, kPaired> shares[kConsumers];
  uint64_t given;  // at the end of a split: all shares are there, and `ended`
  uint64_t free;   // they have been taken
  Slot ended;      // of the split that has ended
  LeftHeads left;
  int32_t warp_items[kThreads / 32];
  int32_t items[2 * kMaxRows + 1];  // long splits of the rows before, then short ones
};
static_assert(sizeof(Shared<128, true>) <= RingBlockBytes(kHopperCode));
static_assert(sizeof(Shared<64, true>) <= RingBlockBytes(kHopperCode));
static_assert(sizeof(Shared<128, false>) <= RingBlockBytes(kHopperCode));
static_assert(sizeof(Shared<64, false>) <= RingBlockBytes(kHopperCode));

// Query heads [begin, begin + count) of the model that a slot's `head` stands for.
struct Columns {
  int32_t begin;
  int32_t count;
};
__device__ inline Columns ColumnsOf(const Plan& plan, int32_t head) {
  const int32_t begin = head % plan.column_groups * kDiffKvColumns;
  return {head / plan.column_groups * plan.group + begin, min(plan.group - begin, kDiffKvColumns)};
}

// The queue's counters as the blocks of a call use them; all zero again when the last block ends.
struct Counters {
  uint32_t items_taken;  // beyond those that blocks begin with
  uint32_t blocks_done;
  uint32_t splits_done[];  // [rows][heads as a slot counts them]
};
inline constexpr int32_t kOwnCounters = 2;

// Partial results in the workspace, of every (row, head as a slot counts them, split); behind them
// the log-sum-exps to base 2 of every (row, query head).
struct Workspace {
  float* floats;
  int32_t slot_heads;
  int32_t heads;
  int32_t lanes;  // of a partial result
  int64_t partial_floats;

  // Of `rows` rows.
  __host__ __device__ int64_t Floats(int64_t rows) const {
    return rows * (int64_t{slot_heads} * kMaxSplits * partial_floats + heads);
  }
  __device__ float* partial(int32_t row, int32_t head, int32_t split) const {
    return floats + ((int64_t{row} * slot_heads + head) * kMaxSplits + split) * partial_floats;
  }
  __device__ float& lse(int64_t rows, int32_t row, int32_t head) const {
    return floats[rows * slot_heads * kMaxSplits * partial_floats + int64_t{row} * heads + head];
  }
};

// All threads: items[r] = long splits of the rows before r; items[rows + r] = all long splits and
// the short ones of the rows before r.
template <int kDim, bool kPaired>
__device__ void CountItems(const Plan& plan, Shared<kDim, kPaired>& shared) {
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const auto rows = static_cast<int32_t>(plan.params.num_rows);
  const int32_t run = (2 * rows + kThreads - 1) / kThreads;
  const int32_t begin = min(thread * run, 2 * rows);
  const int32_t end = min(begin + run, 2 * rows);
  int32_t own = 0;
  for (int32_t r = begin; r < end; ++r) {
    const DiffKvLayer layer = plan.params.rows[r < rows ? r : r - rows].layer;
    for (int32_t head = 0; head < plan.params.pages.geometry.kv_heads; ++head) {
      const Cut cut = CutHead(plan, layer, head);
      own += (r < rows ? cut.long_splits : cut.splits - cut.long_splits) * plan.column_groups;
    }
    shared.items[r + 1] = own;  // of this thread's share so far
  }
  int32_t before = own;
  for (int32_t step = 1; step < 32; step *= 2) {
    const int32_t other = __shfl_up_sync(0xffffffffu, before, step);
    before += thread % 32 >= step ? other : 0;
  }
  if (thread % 32 == 31) shared.warp_items[thread / 32] = before;
  __syncthreads();
  before -= own;
  for (int32_t warp = 0; warp < thread / 32; ++warp) before += shared.warp_items[warp];
  for (int32_t r = begin; r < end; ++r) shared.items[r + 1] += before;
  if (thread == 0) shared.items[0] = 0;
  __syncthreads();
}

}  // namespace baton::kernels::cuda::diffkv
