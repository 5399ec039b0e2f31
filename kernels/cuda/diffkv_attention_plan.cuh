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
// A head has kFewSplits splits while these have at most kFullSplitPages pages, then twice as many
// and so on, up to kMaxSplits: more would write more partial results than they save time, fewer
// would leave multiprocessors idle when there is one sequence.
inline constexpr int32_t kFewSplits = 4;
inline constexpr int32_t kFullSplitPages = 64;
inline constexpr int32_t kMaxSplits = 32;
// Splits are merged in two steps, so many of them at once, then their results. As many are read at
// once, and when a head's last split ends most of the others have been merged.
inline constexpr int32_t kMergedSplits = 6;
__host__ __device__ constexpr int32_t MergesOf(int32_t splits) {
  return (splits + kMergedSplits - 1) / kMergedSplits;
}
inline constexpr int32_t kMaxMerges = MergesOf(kMaxSplits);
// Pages of a split that are still to be fetched when the block takes its next one: as many as are
// brought while that is found and its queries are made. A block that took it earlier would keep it
// from others that have nothing left to do.
inline constexpr int32_t kPagesAhead = 8;
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
  int32_t index;          // of the page among the head's, high before low
  int32_t row;
  int32_t head;  // KV head x column groups + column group
  uint8_t split;
  uint8_t splits;
  uint8_t flags;
};
inline constexpr uint8_t kLowTier = 1;   // the page is of the low tier
inline constexpr uint8_t kEnds = 2;      // the last round of a split
inline constexpr uint8_t kStop = 4;      // no split is left
inline constexpr uint8_t kBegins = 8;    // the first round of a split
inline constexpr int32_t kQueryBit = 4;  // which of the two places has the split's queries

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

// Lanes of each four that have heads, a power of two, when each may have lane_heads.
__host__ __device__ constexpr int32_t PartialLanes(int64_t heads, int32_t lane_heads) {
  const int64_t lanes = (heads + lane_heads - 1) / lane_heads;
  return lanes <= 2 ? static_cast<int32_t>(lanes) : 4;
}
// Floats of a partial result in memory, of a head `dim` wide: values, and of each lane that has
// heads their maxima and sums.
__host__ __device__ constexpr int64_t PartialFloats(int32_t lanes,
                                                    int32_t lane_heads,
                                                    int64_t dim) {
  return lanes * (lane_heads * dim + 4);
}

// Weights of a token that are kept side by side in steps that score (diffkv_attention_kept.cuh):
// of each query head of a slot's head, and of what makes them a power of two.
constexpr int32_t KeptColumns(int32_t group) {
  int32_t columns = 1;
  while (columns < group && columns < kDiffKvColumns) columns *= 2;
  return columns;
}

// Splits that blocks begin with, so that none has to know of other heads first: block b has of the
// b-th head of all rows, modulo their number, the next one, if there is one.
struct Dealt {
  int32_t heads;     // [row][head as in Slot]
  int32_t each;      // splits of a head that are dealt, if it has as many
  int32_t one_more;  // so many first heads have one more

  static Dealt Of(int32_t blocks, int32_t heads) { return {heads, blocks / heads, blocks % heads}; }
  // Of a head that has `splits`.
  __device__ int32_t of(int32_t head, int32_t splits) const {
    return min(each + (head < one_more ? 1 : 0), splits);
  }
};

// The call, with what of it every block would have to divide for.
struct Plan {
  DiffKvAttentionParams params;
  int32_t group;          // query heads of a KV head
  int32_t column_groups;  // the same, eight at a time
  int32_t kept_columns;
  int32_t page_tokens[kDiffKvTiers];
  uint32_t inverse_tokens[kDiffKvTiers];  // 2^32 / page_tokens, rounded up
  uint32_t read_bytes[kDiffKvTiers];
  Dealt dealt;

  // Pages of a tier with so many tokens; exact below 2^26.
  __device__ int32_t PagesOf(int32_t tier, int32_t tokens) const {
    return static_cast<int32_t>(
        __umulhi(static_cast<uint32_t>(tokens + page_tokens[tier] - 1), inverse_tokens[tier]));
  }
  // Heads as a slot counts them.
  __host__ __device__ int32_t heads() const {
    return params.pages.geometry.kv_heads * column_groups;
  }
  // Whether query heads take two columns each (diffkv_queries.cuh).
  __host__ __device__ bool paired() const { return group <= kDiffKvColumns / 2; }
};

// All but what is dealt, which depends on the blocks.
inline Plan MakePlan(const DiffKvAttentionParams& params) {
  const DiffKvGeometry& geometry = params.pages.geometry;
  Plan plan = {};
  plan.params = params;
  plan.group = static_cast<int32_t>(params.heads / geometry.kv_heads);
  plan.column_groups = (plan.group + kDiffKvColumns - 1) / kDiffKvColumns;
  plan.kept_columns = KeptColumns(plan.group);
  for (int32_t tier = 0; tier < kDiffKvTiers; ++tier) {
    plan.page_tokens[tier] = geometry.layout(tier).page_tokens();
    plan.inverse_tokens[tier] = ~0u / static_cast<uint32_t>(plan.page_tokens[tier]) + 1;
    plan.read_bytes[tier] =
        static_cast<uint32_t>(ReadBytes(geometry.head_dim, geometry.tiers[tier]));
  }
  return plan;
}

// Rounds of the computing warps that these pages take.
__device__ inline int32_t RoundsOf(int32_t pages) { return (pages + kConsumers - 1) / kConsumers; }

// Splits of nearly the same size, in whole rounds of the computing warps: the first ones have one
// more.
struct Splits {
  int32_t count;
  int32_t rounds;
  int32_t one_more;

  // Of `pages` pages, the last of which may be missing in the last round.
  __device__ static Splits Of(int32_t pages, int32_t count) {
    const int32_t rounds = RoundsOf(pages);
    const int32_t each = rounds / count;
    return {count, each, rounds - each * count};
  }
  // Pages before a split.
  __device__ int32_t before(int32_t split) const {
    return (split * rounds + min(split, one_more)) * kConsumers;
  }
};

// How a head's pages are cut.
struct Cut {
  int32_t tokens[kDiffKvTiers];
  int32_t high_pages;
  int32_t pages;  // of both tiers
  Splits splits;
};

__device__ inline Cut CutHead(const Plan& plan, const DiffKvLayer& layer, int32_t kv_head) {
  const int2 counts = reinterpret_cast<const int2*>(layer.token_counts)[kv_head];
  Cut cut = {.tokens = {counts.x, counts.y}};
  cut.high_pages = plan.PagesOf(kDiffKvHigh, counts.x);
  cut.pages = cut.high_pages + plan.PagesOf(kDiffKvLow, counts.y);
  // A head without tokens has one split too, which writes its results.
  int32_t count = min(max(RoundsOf(cut.pages), 1), kFewSplits);
  while (count < kMaxSplits && cut.pages > count * kFullSplitPages) count *= 2;
  cut.splits = Splits::Of(cut.pages, count);
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

  __device__ int32_t begin() const { return cut.splits.before(split); }
  __device__ int32_t end() const { return min(cut.splits.before(split + 1), cut.pages); }
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

// Splits of a head, which has `splits`, that have all ended and are merged at once.
struct Merge {
  int32_t row;
  int32_t head;  // as in Slot
  int32_t splits;
  int16_t index;     // among the head's
  bool others_done;  // the head's other merges

  __device__ int32_t first() const { return index * kMergedSplits; }
  __device__ int32_t size() const { return min(splits - first(), kMergedSplits); }
  // Of the head.
  __device__ int32_t merges() const { return MergesOf(splits); }
  // Whether it is the head's only one.
  __device__ bool alone() const { return splits <= kMergedSplits; }
};

// What a block's computing warps merge when the block has nothing else to do.
struct LeftMerges {
  Merge merges[kWarpLanes];
  int32_t count;
  bool last;          // the one at hand was the last of its head
  uint64_t complete;  // no more will come
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
  uint64_t counted;   // `items` are there
  WarpShare<kDim, kPaired> shares[kConsumers];
  uint64_t given;  // at the end of a split: all shares are there, and `ended`
  uint64_t free;   // they have been taken
  Slot ended;      // of the split that has ended
  LeftMerges left;
  uint64_t landed;  // what the merging warp merges is in `landing`
  int32_t warp_items[kConsumers];
  int32_t items[kMaxRows + 1];  // splits of the rows before that are not dealt
  // Hopper's alone.
  alignas(16) float landing[kMergedSplits][PartialFloats(4, DiffKvPlanes<kPaired>::kHeads, kDim)];

  // Of a block.
  static constexpr size_t Bytes(bool hopper_code) {
    return hopper_code ? sizeof(Shared) : offsetof(Shared, landing);
  }
};
constexpr bool SharedFits(bool hopper_code) {
  const size_t most = RingBlockBytes(hopper_code);
  return Shared<128, true>::Bytes(hopper_code) <= most &&
         Shared<64, true>::Bytes(hopper_code) <= most &&
         Shared<128, false>::Bytes(hopper_code) <= most &&
         Shared<64, false>::Bytes(hopper_code) <= most;
}
static_assert(SharedFits(true) && SharedFits(false));

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
  uint32_t items_taken;  // beyond those that are dealt
  uint32_t blocks_done;
  // [rows][heads as a slot counts them]: of each merge kMergeBits for the splits that have ended,
  // above them the merges that are done.
  uint32_t ended[];

  __device__ uint32_t& of(const Plan& plan, const Merge& merge) {
    return ended[merge.row * plan.heads() + merge.head];
  }
};
inline constexpr int32_t kMergeBits = 3;
static_assert(kMergedSplits < 1 << kMergeBits && kMaxMerges < 1 << kMergeBits);
static_assert((kMaxMerges + 1) * kMergeBits <= 32);
inline constexpr int32_t kOwnCounters = 2;

// Partial results in the workspace: of every (row, head as a slot counts them) those of the splits,
// then those of merges; behind all the log-sum-exps to base 2 of every (row, query head).
struct Workspace {
  static constexpr int32_t kPartials = kMaxSplits + kMaxMerges;  // of a head

  float* floats;
  int32_t slot_heads;
  int32_t heads;
  int32_t lanes;  // of a partial result
  int64_t partial_floats;

  // Of `rows` rows.
  __host__ __device__ int64_t Floats(int64_t rows) const {
    return rows * (int64_t{slot_heads} * kPartials * partial_floats + heads);
  }
  // Of a split.
  __device__ float* partial(int32_t row, int32_t head, int32_t split) const {
    return floats + ((int64_t{row} * slot_heads + head) * kPartials + split) * partial_floats;
  }
  __device__ float* merged(const Merge& merge) const {
    return partial(merge.row, merge.head, kMaxSplits + merge.index);
  }
  __device__ float& lse(int64_t rows, int32_t row, int32_t head) const {
    return floats[rows * slot_heads * kPartials * partial_floats + int64_t{row} * heads + head];
  }
};

// All computing warps: items[r] = splits of the rows before r that are not dealt.
template <int kDim, bool kPaired>
__device__ void CountItems(const Plan& plan, Shared<kDim, kPaired>& shared) {
  constexpr int32_t kCounting = kConsumers * kWarpLanes;
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const auto rows = static_cast<int32_t>(plan.params.num_rows);
  const int32_t run = (rows + kCounting - 1) / kCounting;
  const int32_t begin = min(thread * run, rows);
  const int32_t end = min(begin + run, rows);
  int32_t own = 0;
  for (int32_t row = begin; row < end; ++row) {
    const DiffKvLayer layer = plan.params.rows[row].layer;
    for (int32_t head = 0; head < plan.heads(); ++head) {
      const Cut cut = CutHead(plan, layer, head / plan.column_groups);
      own += cut.splits.count - plan.dealt.of(row * plan.heads() + head, cut.splits.count);
    }
    shared.items[row + 1] = own;  // of this thread's share so far
  }
  const int32_t through = InclusiveSum(own);
  if (thread % kWarpLanes == kWarpLanes - 1) shared.warp_items[thread / kWarpLanes] = through;
  NamedBarrier(1, kCounting);
  int32_t before = through - own;
  for (int32_t warp = 0; warp < thread / kWarpLanes; ++warp) before += shared.warp_items[warp];
  for (int32_t row = begin; row < end; ++row) shared.items[row + 1] += before;
  if (thread == 0) shared.items[0] = 0;
  __syncwarp();
  if (thread % kWarpLanes == 0) BarrierArrive(&shared.counted);
}

}  // namespace baton::kernels::cuda::diffkv
