// Writes the new tokens of a step into pages of format `diffkv` (docs/kernels/diffkv.md).
//
// A block has a row: its last warp manages the row's pages, the others code the vectors of a head
// each. What decides here is not work but latency, so the kernel begins early, and everything that
// does not depend on page ids is done while they are looked up.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "absl/status/status.h"

#include "kernels/core/exec_context.h"
#include "kernels/cuda/bf16.cuh"
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/diffkv_checks.h"
#include "kernels/cuda/diffkv_token.cuh"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/runtime/cuda_status.h"
#include "kernels/cuda/runtime/device_queue.h"
#include "kernels/cuda/runtime/early_launch.h"
#include "kernels/cuda/warp.cuh"
#include "kernels/kv_format/diffkv.h"
#include "kernels/kv_format/quantize.h"
#include "kernels/ops/diffkv_pages.h"
#include "kernels/ops/diffkv_params.h"
#include "kernels/ops/param_checker.h"

namespace baton::kernels::cuda {
namespace {

// Warps that code heads, at most; a head in each in turn.
constexpr int32_t kMostCoders = 8;
constexpr int32_t kBlocksPerProcessor = 4;
constexpr int32_t kMostThreads = (1 + kMostCoders) * kWarpLanes;
// Heads of a row that a block has room for.
constexpr int32_t kMostHeads = 128;

// One tier, with what of it every thread would have to work out.
struct Tier {
  DiffKvTier bits;
  int32_t page_tokens = 0;
  uint32_t inverse = 0;  // the upper word of slot * inverse is slot / page_tokens
  uint32_t key_scales = 0;
  uint32_t value_scales = 0;
  uint32_t scores = 0;
  uint32_t positions = 0;

  // Exact below 2^26: inverse * page_tokens is above 2^32 by less than page_tokens, at most 64.
  __device__ int32_t PageOf(int32_t slot) const {
    return static_cast<int32_t>(__umulhi(static_cast<uint32_t>(slot), inverse));
  }
  __device__ DiffKvSlotRefs Refs(std::byte* page, int32_t slot) const {
    return {reinterpret_cast<QuantRange*>(page + key_scales) + slot,
            reinterpret_cast<QuantRange*>(page + value_scales) + slot,
            reinterpret_cast<float*>(page + scores) + slot,
            reinterpret_cast<int32_t*>(page + positions) + slot};
  }
};

// How codes and ranges of the high tier become those of the low one (kernels/kv_format/quantize.h).
struct Demotion {
  uint32_t ratio = 1;
  uint32_t inverse = 0;  // 2^16 / ratio, rounded up

  // DemoteCode. Exact: inverse * ratio is above 2^16 by less than ratio, at most 85, and the sum is
  // at most 297.
  __device__ uint8_t Code(uint8_t code) const {
    return static_cast<uint8_t>((code + ratio / 2) * inverse >> 16);
  }
  __device__ QuantRange Range(QuantRange range) const {
    const float scale = __half2float(__ushort_as_half(range.scale));
    return {.scale = __half_as_ushort(__float2half_rn(scale * static_cast<float>(ratio))),
            .zero = range.zero};
  }
};

struct AppendArgs {
  const uint4* k = nullptr;  // eight elements each
  const uint4* v = nullptr;
  int64_t stride = 0;  // in eights
  const DiffKvAppendRow* rows = nullptr;
  std::byte* pages = nullptr;
  int32_t kv_heads = 0;
  int32_t coders = 0;  // warps
  Tier tiers[kDiffKvTiers];
  Demotion demotions[2];  // of keys and of values

  template <int kDim>
  __device__ std::byte* page(int32_t id) const {
    return pages + static_cast<size_t>(id) * DiffKvPageBytes(kDim);
  }
};

// The manager of the row's pages tells the coders what it decided, once.
__device__ void SyncRoles(const AppendArgs& args) {
  NamedBarrier(1, static_cast<uint32_t>(args.coders + 1) * kWarpLanes);
}

// Where a new token of one head goes, and, in the low tier, the one that it takes the slot of.
struct Place {
  int32_t pages[kDiffKvTiers];  // ids
  int32_t slots[kDiffKvTiers];  // in the pages; low slot -1: no token is moved
  uint32_t fresh;               // bit per tier: the page is new
};

struct AppendShared {
  Place places[kMostHeads];
  bool fits;                       // the row has room for its tokens
  DiffKvCodes codes[kMostCoders];  // of new tokens
  DiffKvCodes moved[kMostCoders];  // of those that go to the low tier
};

// What a row's page manager knows of the head of a lane.
struct HeadTokens {
  int32_t slots[kDiffKvTiers] = {-1, -1};  // of the head
  uint32_t grows = 0;                      // bit per tier: it has a token more
  uint32_t fresh = 0;                      // bit per tier: and that needs a page
  bool fits = true;                        // the head's pages do, and the slots are its own
};
constexpr uint32_t kHighBit = 1u << kDiffKvHigh;
constexpr uint32_t kLowBit = 1u << kDiffKvLow;

// Reads what was decided for a head with these counts.
__device__ void ReadAction(const DiffKvAction* action, int2 counts, HeadTokens& tokens) {
  static_assert(sizeof(DiffKvAction) == 12 && offsetof(DiffKvAction, appended) == 8 &&
                offsetof(DiffKvAction, low_appended) == 9);
  const int32_t* words = &action->high_slot;
  const int32_t flags = words[2];
  const DiffKvAction read = {.high_slot = words[0],
                             .demoted_to = words[1],
                             .appended = (flags & 0xff) != 0,
                             .low_appended = (flags & 0xff00) != 0};
  tokens.slots[kDiffKvHigh] = read.high_slot;
  tokens.slots[kDiffKvLow] = read.demoted_to;
  tokens.grows = (read.appended ? kHighBit : 0) | (read.low_appended ? kLowBit : 0);
  tokens.fits = FitsCounts(read, counts.x, counts.y);
}

__device__ HeadTokens TokensOf(const AppendArgs& args, const DiffKvAppendRow& row, int32_t head) {
  HeadTokens tokens;
  if (head >= args.kv_heads) return tokens;
  const int2 counts = reinterpret_cast<const int2*>(row.layer.token_counts)[head];
  if (row.sweep) {
    ReadAction(row.actions + head, counts, tokens);
  } else {
    tokens.slots[kDiffKvHigh] = counts.x;
    tokens.grows = kHighBit;
  }
  const Tier& high = args.tiers[kDiffKvHigh];
  const Tier& low = args.tiers[kDiffKvLow];
  const int32_t high_pages = high.PageOf(counts.x + high.page_tokens - 1);
  const int32_t low_pages = low.PageOf(counts.y + low.page_tokens - 1);
  const uint32_t full = (high_pages * high.page_tokens == counts.x ? kHighBit : 0) |
                        (low_pages * low.page_tokens == counts.y ? kLowBit : 0);
  tokens.fresh = tokens.grows & full;
  const int32_t pages = high_pages + low_pages + __popc(tokens.fresh);
  tokens.fits = tokens.fits && pages <= row.layer.columns;
  return tokens;
}

// A slot of a head: where it is in a page, and where in the table the page's id.
struct SlotPlace {
  int32_t slot;
  int32_t* entry;
};

__device__ SlotPlace
Locate(const AppendArgs& args, const DiffKvLayer& layer, int32_t head, int32_t tier, int32_t slot) {
  const int32_t page = args.tiers[tier].PageOf(slot);
  return {.slot = slot - page * args.tiers[tier].page_tokens,
          .entry = &DiffKvPageId(layer, head, tier, page)};
}

// The table and the count of a tier get what is new.
__device__ void Grow(const DiffKvLayer& layer,
                     int32_t head,
                     int32_t tier,
                     const HeadTokens& tokens,
                     const SlotPlace& at,
                     int32_t id) {
  if ((tokens.fresh >> tier & 1u) != 0) *at.entry = id;
  if ((tokens.grows >> tier & 1u) != 0) DiffKvCount(layer, head, tier) = tokens.slots[tier] + 1;
}

// Gives the slots of a head their pages: the lease's, from `next` on, where they are new, else
// those of the table.
__device__ Place TakePages(const AppendArgs& args,
                           const DiffKvAppendRow& row,
                           int32_t head,
                           const HeadTokens& tokens,
                           const int32_t* next) {
  const bool high_fresh = (tokens.fresh & kHighBit) != 0;
  const bool low_fresh = (tokens.fresh & kLowBit) != 0;
  const SlotPlace high = Locate(args, row.layer, head, kDiffKvHigh, tokens.slots[kDiffKvHigh]);
  Place place = {.slots = {high.slot, -1}, .fresh = tokens.fresh};
  place.pages[kDiffKvHigh] = *(high_fresh ? next : high.entry);
  if (row.sweep && tokens.slots[kDiffKvLow] >= 0) {
    const SlotPlace low = Locate(args, row.layer, head, kDiffKvLow, tokens.slots[kDiffKvLow]);
    place.slots[kDiffKvLow] = low.slot;
    place.pages[kDiffKvLow] = *(low_fresh ? next + (high_fresh ? 1 : 0) : low.entry);
    Grow(row.layer, head, kDiffKvLow, tokens, low, place.pages[kDiffKvLow]);
  }
  Grow(row.layer, head, kDiffKvHigh, tokens, high, place.pages[kDiffKvHigh]);
  return place;
}

// The page manager of a row, by one warp, a head in each lane: an exclusive sum over (head, tier)
// decides which head gets which id of the lease. Where a lane has several heads it looks at all of
// them before it changes anything. Where the tokens do not fit only the actions change, and become
// none: a caller sees that high_slot is -1.
__device__ void ManagePages(const AppendArgs& args,
                            const DiffKvAppendRow& row,
                            AppendShared& shared) {
  const auto lane = static_cast<int32_t>(threadIdx.x % kWarpLanes);
  const uint32_t lanes_before = (1u << lane) - 1u;
  const DiffKvLease lease = *row.lease;
  const int32_t looks = args.kv_heads <= kWarpLanes ? 0 : 1;
  bool fits = true;
  int32_t used = lease.used;
#pragma unroll 1
  for (int32_t turn = 0; turn <= looks; ++turn) {
    used = lease.used;
#pragma unroll 1
    for (int32_t head = lane; head - lane < args.kv_heads; head += kWarpLanes) {
      const HeadTokens tokens = TokensOf(args, row, head);
      const uint32_t high = __ballot_sync(kAllLanes, (tokens.fresh & kHighBit) != 0);
      const uint32_t low = __ballot_sync(kAllLanes, (tokens.fresh & kLowBit) != 0);
      const int32_t first = used + __popc(high & lanes_before) + __popc(low & lanes_before);
      used += __popc(high) + __popc(low);
      fits = __all_sync(kAllLanes, tokens.fits) != 0 && fits && used <= lease.count;
      if (turn < looks || head >= args.kv_heads) continue;
      if (fits) shared.places[head] = TakePages(args, row, head, tokens, lease.ids + first);
      if (!fits || !row.sweep) {
        row.actions[head] = {.high_slot = fits ? tokens.slots[kDiffKvHigh] : -1, .appended = fits};
      }
    }
  }
  if (lane == 0) {
    shared.fits = fits;
    if (fits) row.lease->used = used;
  }
}

// Codes a head's new token, by one warp: the key in its first kVectorLanes lanes, the value in the
// next. The range of the lane's vector.
template <int kDim>
__device__ QuantRange
CodeToken(const AppendArgs& args, const DiffKvAppendRow& row, int32_t head, DiffKvCodes& codes) {
  const DiffKvTier& tier = args.tiers[kDiffKvHigh].bits;
  const auto lane = static_cast<int32_t>(threadIdx.x % kWarpLanes);
  const int32_t in_vector = lane % kVectorLanes<kDim>;
  const int32_t vector = lane / kVectorLanes<kDim> % 2;  // further lanes repeat the others' work
  const int32_t bits = vector == 0 ? tier.key_bits : tier.value_bits;
  const uint4* source = (vector == 0 ? args.k : args.v) + row.row * args.stride;
  float x[kVectorWidth];
  WidenBf16(source[head * kVectorLanes<kDim> + in_vector], x);
  const QuantRange range = FitVector<kDim>(x, bits);
  const uint2 eight = QuantizeEight(x, range, bits);
  if (lane < 2 * kVectorLanes<kDim>) {
    uint8_t* target = vector == 0 ? codes.key : codes.value;
    *reinterpret_cast<uint2*>(target + kVectorWidth * in_vector) = eight;
  }
  __syncwarp();
  return range;
}

// The pages of a place.
struct PlacePages {
  std::byte* high;
  std::byte* low;
};

// Puts a coded token into a slot of the high tier, by one warp.
template <int kDim>
__device__ void StoreToken(const Tier& tier,
                           std::byte* page,
                           int32_t slot,
                           int32_t position,
                           QuantRange range,
                           const DiffKvCodes& codes) {
  const uint32_t lane = threadIdx.x % kWarpLanes;
  WithTier(tier.bits, [&]<DiffKvTier kTier>() { PackToken<kDim, kTier>(page, slot, codes); });
  const DiffKvSlotRefs refs = tier.Refs(page, slot);
  if (lane == 0) {
    *refs.key_range = range;
    *refs.score = 0.0f;
    *refs.position = position;
  }
  if (lane == kVectorLanes<kDim>) *refs.value_range = range;
}

// Moves a token to a slot of the low tier, by one warp: codes and scales by the demotion map.
template <int kDim>
__device__ void MoveToken(const AppendArgs& args,
                          const PlacePages& pages,
                          const int32_t (&slots)[kDiffKvTiers],
                          DiffKvCodes& codes) {
  const Tier& wide = args.tiers[kDiffKvHigh];
  const Tier& narrow = args.tiers[kDiffKvLow];
  const DiffKvSlotRefs from = wide.Refs(pages.high, slots[kDiffKvHigh]);
  const DiffKvSlotRefs to = narrow.Refs(pages.low, slots[kDiffKvLow]);
  const uint32_t lane = threadIdx.x % kWarpLanes;
  WithTier(wide.bits, [&]<DiffKvTier kTier>() {
    UnpackToken<kDim, kTier>(pages.high, slots[kDiffKvHigh], codes);
  });
  __syncwarp();
#pragma unroll 1
  for (int32_t vector = 0; vector < 2; ++vector) {
    uint8_t* of_vector = vector == 0 ? codes.key : codes.value;
    const Demotion& demotion = args.demotions[vector];
    for (uint32_t i = lane; i < kDim; i += kWarpLanes) of_vector[i] = demotion.Code(of_vector[i]);
  }
  __syncwarp();
  WithTier(narrow.bits, [&]<DiffKvTier kTier>() {
    PackToken<kDim, kTier>(pages.low, slots[kDiffKvLow], codes);
  });
  if (lane < 2) {
    const QuantRange range = lane == 0 ? *from.key_range : *from.value_range;
    *(lane == 0 ? to.key_range : to.value_range) = args.demotions[lane].Range(range);
  }
  if (lane == 2) *to.score = *from.score;
  if (lane == 3) *to.position = *from.position;
  __syncwarp();
}

// Zeroes the pages of a place that are new, by one warp.
template <int kDim>
__device__ void ZeroPages(const PlacePages& pages, uint32_t fresh) {
#pragma unroll 1
  for (int32_t tier = 0; tier < kDiffKvTiers; ++tier) {
    if ((fresh >> tier & 1u) == 0) continue;
    std::byte* page = tier == kDiffKvHigh ? pages.high : pages.low;
#pragma unroll 1
    for (size_t at = threadIdx.x % kWarpLanes * sizeof(uint4); at < DiffKvPageBytes(kDim);
         at += kWarpLanes * sizeof(uint4)) {
      *reinterpret_cast<uint4*>(page + at) = uint4{0, 0, 0, 0};
    }
  }
  __syncwarp();
}

// A coder's heads, by one warp. What becomes of the first is known once it is coded.
template <int kDim>
__device__ void CodeHeads(const AppendArgs& args,
                          const DiffKvAppendRow& row,
                          int32_t coder,
                          AppendShared& shared) {
  DiffKvCodes& codes = shared.codes[coder];
#pragma unroll 1
  for (int32_t head = coder; head < args.kv_heads; head += args.coders) {
    const QuantRange range = CodeToken<kDim>(args, row, head, codes);
    if (head == coder) SyncRoles(args);
    if (!shared.fits) break;
    const Place place = shared.places[head];
    const PlacePages pages = {.high = args.page<kDim>(place.pages[kDiffKvHigh]),
                              .low = args.page<kDim>(place.pages[kDiffKvLow])};
    if (place.fresh != 0) ZeroPages<kDim>(pages, place.fresh);
    if (place.slots[kDiffKvLow] >= 0) {
      MoveToken<kDim>(args, pages, place.slots, shared.moved[coder]);
    }
    StoreToken<kDim>(
        args.tiers[kDiffKvHigh], pages.high, place.slots[kDiffKvHigh], row.position, range, codes);
    __syncwarp();
  }
}

// Block x has row x.
template <int kDim>
__global__ void __launch_bounds__(kMostThreads, kBlocksPerProcessor)
    AppendKernel(const __grid_constant__ AppendArgs args) {
  LaunchDependents();
  __shared__ AppendShared shared;
  const DiffKvAppendRow row = args.rows[blockIdx.x];  // of the host, which no kernel writes
  const auto warp = static_cast<int32_t>(threadIdx.x / kWarpLanes);
  WaitForPredecessors();
  if (warp == args.coders) {
    ManagePages(args, row, shared);
    SyncRoles(args);
  } else {
    CodeHeads<kDim>(args, row, warp, shared);
  }
}

Tier MakeTier(const DiffKvGeometry& geometry, int32_t tier) {
  const DiffKvPageLayout layout = geometry.layout(tier);
  const auto tokens = static_cast<uint32_t>(layout.page_tokens());
  return {.bits = geometry.tiers[tier],
          .page_tokens = layout.page_tokens(),
          .inverse = static_cast<uint32_t>(((uint64_t{1} << 32) + tokens - 1) / tokens),
          .key_scales = static_cast<uint32_t>(layout.key_scales()),
          .value_scales = static_cast<uint32_t>(layout.value_scales()),
          .scores = static_cast<uint32_t>(layout.scores()),
          .positions = static_cast<uint32_t>(layout.positions())};
}

Demotion MakeDemotion(int32_t from, int32_t to) {
  const auto ratio = static_cast<uint32_t>(DemotionRatio(from, to));
  return {.ratio = ratio, .inverse = ((1u << 16) + ratio - 1) / ratio};
}

AppendArgs MakeArgs(const DiffKvAppendParams& params) {
  const DiffKvGeometry& geometry = params.pages.geometry;
  const DiffKvTier& high = geometry.tiers[kDiffKvHigh];
  const DiffKvTier& low = geometry.tiers[kDiffKvLow];
  return {.k = static_cast<const uint4*>(params.k),
          .v = static_cast<const uint4*>(params.v),
          .stride = params.stride / kVectorWidth,
          .rows = params.rows,
          .pages = params.pages.base,
          .kv_heads = geometry.kv_heads,
          .coders = std::min(geometry.kv_heads, kMostCoders),
          .tiers = {MakeTier(geometry, kDiffKvHigh), MakeTier(geometry, kDiffKvLow)},
          .demotions = {MakeDemotion(high.key_bits, low.key_bits),
                        MakeDemotion(high.value_bits, low.value_bits)}};
}

absl::Status Check(const DiffKvAppendParams& params) {
  ParamChecker check("diffkv_append");
  check.NotNegative("num_rows", params.num_rows)
      .Require(params.num_rows <= std::numeric_limits<int32_t>::max(),
               "num_rows",
               params.num_rows,
               "must be below 2^31");
  if (!check.ok() || params.num_rows == 0) {
    return check.status();
  }
  CheckDiffKvPages(params.pages, check);
  check
      .Require(params.pages.geometry.kv_heads <= kMostHeads,
               "geometry.kv_heads",
               params.pages.geometry.kv_heads,
               "must be at most 128")
      .NotNull("k", params.k)
      .NotNull("v", params.v)
      .Require(FitsVectors({params.k, params.v}, {params.stride}),
               "stride",
               params.stride,
               "k and v must be aligned to 16 bytes")
      .NotNull("rows", params.rows);
  return check.status();
}

}  // namespace

absl::Status DiffKvAppend(const ExecContext& context, const DiffKvAppendParams& params) {
  if (absl::Status status = Check(params); !status.ok() || params.num_rows == 0) {
    return status;
  }
  const AppendArgs args = MakeArgs(params);
  const auto kernel = params.pages.geometry.head_dim == 128 ? AppendKernel<128> : AppendKernel<64>;
  return ToStatus(LaunchEarly(*context.queue,
                              kernel,
                              static_cast<uint32_t>(params.num_rows),
                              static_cast<uint32_t>(args.coders + 1) * kWarpLanes,
                              0,
                              args),
                  "diffkv_append");
}

}  // namespace baton::kernels::cuda
