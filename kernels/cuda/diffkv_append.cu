// Writes the new tokens of a layer into pages of format `diffkv` (docs/kernels/diffkv.md): a warp
// has a row's head. What decides here is not work but latency: the kernel begins early, where a
// token goes is known before its layer, and a slot that nobody had is not read.
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <limits>

#include "absl/status/status.h"

#include "kernels/core/exec_context.h"
#include "kernels/cuda/bf16.cuh"
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/diffkv_checks.h"
#include "kernels/cuda/diffkv_pages.cuh"
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

constexpr int32_t kWarps = 4;
constexpr int32_t kThreads = kWarps * kWarpLanes;

// One tier, with what of it every thread would have to work out.
struct Tier {
  DiffKvTier bits;
  int32_t page_tokens = 0;
  uint32_t inverse = 0;  // the upper word of slot * inverse is slot / page_tokens
  uint32_t key_scales = 0;
  uint32_t value_scales = 0;
  uint32_t scores = 0;
  uint32_t positions = 0;

  // The slot's place in its page. Exact below 2^26: inverse * page_tokens is above 2^32 by less
  // than page_tokens, at most 64.
  __device__ int32_t InPage(int32_t slot) const {
    return slot -
           static_cast<int32_t>(__umulhi(static_cast<uint32_t>(slot), inverse)) * page_tokens;
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
  int32_t num_rows = 0;
  int32_t kv_heads = 0;
  DiffKvPages pages;
  Tier tiers[kDiffKvTiers];
  Demotion demotions[2];  // of keys and of values
};

// Where a head's token goes in a tier.
struct Place {
  std::byte* page;
  int32_t slot;  // in the page; less than zero: nowhere
  bool empty;    // and nobody had it
};

__device__ Place PlaceIn(const AppendArgs& args, const DiffKvAction& action, int32_t tier) {
  const int32_t slot = DiffKvSlot(action, tier);
  return {.page = DevicePage(args.pages, action.pages[tier]),
          .slot = slot < 0 ? slot : args.tiers[tier].InPage(slot),
          .empty = DiffKvGrows(action, tier)};
}

// Which vector of a token a lane has eight elements of: 0 the key, 1 the value; further lanes
// repeat the others' work.
template <int kDim>
__device__ int32_t VectorOfLane() {
  return static_cast<int32_t>(threadIdx.x % kWarpLanes) / kVectorLanes<kDim> % 2;
}

// The lane's eight elements of a head's new token.
template <int kDim>
__device__ uint4 ReadToken(const AppendArgs& args, int32_t row, int32_t head) {
  const uint4* source = (VectorOfLane<kDim>() == 0 ? args.k : args.v) + row * args.stride;
  return source[head * kVectorLanes<kDim> + static_cast<int32_t>(threadIdx.x) % kVectorLanes<kDim>];
}

// Codes a new token, by one warp. The range of the lane's vector.
template <int kDim>
__device__ QuantRange CodeToken(const DiffKvTier& tier, uint4 eight, DiffKvCodes& codes) {
  const auto lane = static_cast<int32_t>(threadIdx.x % kWarpLanes);
  const int32_t vector = VectorOfLane<kDim>();
  const int32_t bits = vector == 0 ? tier.key_bits : tier.value_bits;
  float x[kVectorWidth];
  WidenBf16(eight, x);
  const QuantRange range = FitVector<kDim>(x, bits);
  const uint2 coded = QuantizeEight(x, range, bits);
  if (lane < 2 * kVectorLanes<kDim>) {
    uint8_t* target = vector == 0 ? codes.key : codes.value;
    *reinterpret_cast<uint2*>(target + kVectorWidth * (lane % kVectorLanes<kDim>)) = coded;
  }
  __syncwarp();
  return range;
}

// Puts a coded token into the high tier, by one warp.
template <int kDim>
__device__ void StoreToken(const Tier& tier,
                           const Place& to,
                           int32_t position,
                           QuantRange range,
                           const DiffKvCodes& codes) {
  const uint32_t lane = threadIdx.x % kWarpLanes;
  WithTier(tier.bits,
           [&]<DiffKvTier kTier>() { PackToken<kDim, kTier>(to.page, to.slot, to.empty, codes); });
  const DiffKvSlotRefs refs = tier.Refs(to.page, to.slot);
  if (lane == 0) {
    *refs.key_range = range;
    *refs.score = 0.0f;
    *refs.position = position;
  }
  if (lane == kVectorLanes<kDim>) *refs.value_range = range;
}

// Moves a token to the low tier, by one warp: codes and scales by the demotion map.
template <int kDim>
__device__ void MoveToken(const AppendArgs& args,
                          const Place& from,
                          const Place& to,
                          DiffKvCodes& codes) {
  const Tier& wide = args.tiers[kDiffKvHigh];
  const Tier& narrow = args.tiers[kDiffKvLow];
  const DiffKvSlotRefs source = wide.Refs(from.page, from.slot);
  const DiffKvSlotRefs target = narrow.Refs(to.page, to.slot);
  const uint32_t lane = threadIdx.x % kWarpLanes;
  WithTier(wide.bits,
           [&]<DiffKvTier kTier>() { UnpackToken<kDim, kTier>(from.page, from.slot, codes); });
  __syncwarp();
#pragma unroll 1
  for (int32_t vector = 0; vector < 2; ++vector) {
    uint8_t* of_vector = vector == 0 ? codes.key : codes.value;
    const Demotion& demotion = args.demotions[vector];
    for (uint32_t i = lane; i < kDim; i += kWarpLanes) of_vector[i] = demotion.Code(of_vector[i]);
  }
  __syncwarp();
  WithTier(narrow.bits,
           [&]<DiffKvTier kTier>() { PackToken<kDim, kTier>(to.page, to.slot, to.empty, codes); });
  if (lane < 2) {
    const QuantRange range = lane == 0 ? *source.key_range : *source.value_range;
    *(lane == 0 ? target.key_range : target.value_range) = args.demotions[lane].Range(range);
  }
  if (lane == 2) *target.score = *source.score;
  if (lane == 3) *target.position = *source.position;
  __syncwarp();
}

// Warp w of block x has head (x kWarps + w) of all rows' heads.
template <int kDim>
__global__ void __launch_bounds__(kThreads) AppendKernel(const __grid_constant__ AppendArgs args) {
  __shared__ DiffKvCodes shared[kWarps];
  const auto warp = static_cast<int32_t>(threadIdx.x / kWarpLanes);
  const int32_t index = static_cast<int32_t>(blockIdx.x) * kWarps + warp;
  const int32_t of_rows = index / args.kv_heads;
  const int32_t head = index - of_rows * args.kv_heads;
  // Of the host, which no kernel writes.
  const DiffKvAppendRow& row = args.rows[min(of_rows, args.num_rows - 1)];
  const DiffKvAction* const actions = row.actions;
  const int32_t token = row.row;
  const int32_t position = row.position;
  WaitForPredecessors();
  LaunchDependents();  // no sooner: attention beside the product in front makes steps longer
  if (of_rows >= args.num_rows) return;
  const uint4 eight = ReadToken<kDim>(args, token, head);
  const DiffKvAction action = actions[head];
  if (action.high_slot < 0) return;
  const Place high = PlaceIn(args, action, kDiffKvHigh);
  const Place low = PlaceIn(args, action, kDiffKvLow);
  DiffKvCodes& codes = shared[warp];
  if (low.slot >= 0) MoveToken<kDim>(args, high, low, codes);
  const Tier& tier = args.tiers[kDiffKvHigh];
  const QuantRange range = CodeToken<kDim>(tier.bits, eight, codes);
  StoreToken<kDim>(tier, high, position, range, codes);
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
          .num_rows = static_cast<int32_t>(params.num_rows),
          .kv_heads = geometry.kv_heads,
          .pages = params.pages,
          .tiers = {MakeTier(geometry, kDiffKvHigh), MakeTier(geometry, kDiffKvLow)},
          .demotions = {MakeDemotion(high.key_bits, low.key_bits),
                        MakeDemotion(high.value_bits, low.value_bits)}};
}

absl::Status Check(const DiffKvAppendParams& params) {
  ParamChecker check("diffkv_append");
  check.NotNegative("num_rows", params.num_rows);
  if (!check.ok() || params.num_rows == 0) {
    return check.status();
  }
  CheckDiffKvPages(params.pages, check);
  constexpr int64_t kMostHeads = std::numeric_limits<int32_t>::max() - kWarps;
  check
      .Require(params.num_rows <= kMostHeads / params.pages.geometry.kv_heads,
               "num_rows",
               params.num_rows,
               "times kv_heads must be below 2^31 - 4")
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
  const int64_t heads = params.num_rows * args.kv_heads;
  return ToStatus(LaunchEarly(*context.queue,
                              kernel,
                              static_cast<uint32_t>((heads + kWarps - 1) / kWarps),
                              kThreads,
                              0,
                              args),
                  "diffkv_append");
}

}  // namespace baton::kernels::cuda
