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
// their last quarter, short ones of at most a fourth, or of kShortPages if that is more, which are
// taken when no head has long ones left: what blocks wait for at the end is little.
inline constexpr int32_t kMaxSplits = 33;
inline constexpr int32_t kFewSplits = 4;
inline constexpr int32_t kFullSplitPages = 64;
inline constexpr int32_t kShortPages = 32;
// A long split is at least this part of a head, which makes kMaxSplits at most: of 2,221 pages 13
// long ones of 124 and 20 short ones of at most 32.
inline constexpr int32_t kLongSplits = 18;
// Pages of a split that are still to be fetched when the block takes its next one: as many as are
// brought while that is found and its queries are made. A block that took it earlier would keep it
// from others that have nothing left to do.
inline constexpr int32_t kPagesAhead = 16;
// A head of at most so many splits is merged by the merging warp that finds it complete, unless the
// computing warps have nothing else to do.
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
    return {count, rounds / count, rounds % count};
  }
  // Pages before a split.
  __device__ int32_t before(int32_t split) const {
    return (split * rounds + min(split, one_more)) * kConsumers;
  }
};

// How a head's pages are cut: long splits, then short ones.
struct Cut {
  int32_t tokens[kDiffKvTiers];
  int32_t high_pages;
  int32_t pages;  // of both tiers
  Splits longs;
  Splits shorts;

  __device__ int32_t splits() const { return longs.count + shorts.count; }
  // The first page of a split.
  __device__ int32_t begin(int32_t split) const {
    return split < longs.count ? longs.before(split)
                               : longs.before(longs.count) + shorts.before(split - longs.count);
  }
};

__device__ inline Cut CutHead(const Plan& plan, const DiffKvLayer& layer, int32_t kv_head) {
  const int2 counts = reinterpret_cast<const int2*>(layer.token_counts)[kv_head];
  Cut cut = {.tokens = {counts.x, counts.y}};
  cut.high_pages = (counts.x + plan.page_tokens[0] - 1) / plan.page_tokens[0];
  cut.pages = cut.high_pages + (counts.y + plan.page_tokens[1] - 1) / plan.page_tokens[1];
  if (cut.pages <= kFewSplits * kFullSplitPages) {
    // A head without tokens has one split too, which writes its results.
    cut.longs = Splits::Of(cut.pages, min(max(RoundsOf(cut.pages), 1), kFewSplits));
  } else {
    const int32_t even = (cut.pages + kLongSplits - 1) / kLongSplits;
    const int32_t rounds = RoundsOf(max(even, kFullSplitPages));
    cut.longs = {cut.pages / 4 * 3 / (rounds * kConsumers), rounds, 0};
    const int32_t rest = cut.pages - cut.longs.before(cut.longs.count);
    const int32_t most = max((rounds + 3) / 4 * kConsumers, kShortPages);
    cut.shorts = Splits::Of(rest, (rest + most - 1) / most);
  }
  return cut;
}
static_assert(kDiffKvTiers == 2, "a head's counts are read at once");

// Long splits that blocks begin with, so that none has to know of other heads first: block b has of
// the b-th head of all rows, modulo their number, the next one, if there is one.
class Dealt {
 public:
  __device__ explicit Dealt(const Plan& plan)
      : heads_(static_cast<int32_t>(plan.params.num_rows) * plan.heads()),
        each_(static_cast<int32_t>(gridDim.x) / heads_),
        one_more_(static_cast<int32_t>(gridDim.x) % heads_) {}

  // The block's head, [row][head as in Slot], and its split, which may be beyond the long ones.
  __device__ int32_t head() const { return static_cast<int32_t>(blockIdx.x) % heads_; }
  __device__ int32_t split() const { return static_cast<int32_t>(blockIdx.x) / heads_; }
  // Splits of a head that are dealt.
  __device__ int32_t of(int32_t head, const Cut& cut) const {
    return min(each_ + (head < one_more_ ? 1 : 0), cut.longs.count);
  }

 private:
  int32_t heads_;
  int32_t each_;
  int32_t one_more_;
};

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
  uint64_t counted;   // `items` are there
  WarpShare<kDim, kPaired> shares[kConsumers];
  uint64_t given;  // at the end of a split: all shares are there, and `ended`
  uint64_t free;   // they have been taken
  Slot ended;      // of the split that has ended
  LeftHeads left;
  int32_t warp_items[kConsumers];
  // Splits of the rows before that are not dealt: long ones, then short ones.
  int32_t items[2 * kMaxRows + 1];
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
  uint32_t items_taken;  // beyond those that are dealt
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

// All computing warps: items[r] = long splits of the rows before r; items[rows + r] = all long
// splits and the short ones of the rows before r. Without those that are dealt.
template <int kDim, bool kPaired>
__device__ void CountItems(const Plan& plan, Shared<kDim, kPaired>& shared) {
  constexpr int32_t kCounting = kConsumers * kWarpLanes;
  const Dealt dealt(plan);
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const auto rows = static_cast<int32_t>(plan.params.num_rows);
  const int32_t run = (2 * rows + kCounting - 1) / kCounting;
  const int32_t begin = min(thread * run, 2 * rows);
  const int32_t end = min(begin + run, 2 * rows);
  int32_t own = 0;
  for (int32_t i = begin; i < end; ++i) {
    const int32_t row = i < rows ? i : i - rows;
    const DiffKvLayer layer = plan.params.rows[row].layer;
    for (int32_t head = 0; head < plan.heads(); ++head) {
      const Cut cut = CutHead(plan, layer, head / plan.column_groups);
      own +=
          i < rows ? cut.longs.count - dealt.of(row * plan.heads() + head, cut) : cut.shorts.count;
    }
    shared.items[i + 1] = own;  // of this thread's share so far
  }
  const int32_t through = InclusiveSum(own);
  if (thread % kWarpLanes == kWarpLanes - 1) shared.warp_items[thread / kWarpLanes] = through;
  NamedBarrier(1, kCounting);
  int32_t before = through - own;
  for (int32_t warp = 0; warp < thread / kWarpLanes; ++warp) before += shared.warp_items[warp];
  for (int32_t i = begin; i < end; ++i) shared.items[i + 1] += before;
  if (thread == 0) shared.items[0] = 0;
  __syncwarp();
  if (thread % kWarpLanes == 0) BarrierArrive(&shared.counted);
}

}  // namespace baton::kernels::cuda::diffkv
