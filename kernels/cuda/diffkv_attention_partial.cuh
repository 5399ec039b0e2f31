// Partial results of diffkv_attention: of a KV head's query heads over a split of its keys.
//
// A warp holds one as matrix instructions leave it, dimensions in rows and heads in columns: lane
// (g, t) = (lane / 4, lane % 4) has of each of its heads, which are the same for all g, some
// dimensions. In global memory the lanes' float4 lie side by side, those of lanes without heads
// left out, so that a warp stores and loads it without gaps and whatever its heads are.
#pragma once

#include <cstdint>

#include "kernels/cuda/bf16.cuh"
#include "kernels/cuda/diffkv_attention_plan.cuh"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/warp.cuh"

namespace baton::kernels::cuda::diffkv {

// A lane's share: of kHeads heads the largest score to base 2 and the sum of the weights relative
// to it, and weighted values, of which [i][j] is of head j % kHeads.
template <int kHeads, int kVectors>
struct Partial {
  float max[kHeads];
  float sum[kHeads];
  float values[kVectors][4];

  // Attention over no key.
  __device__ void Clear() {
    *this = {};
    for (float& x : max) x = -INFINITY;
  }

  // Takes in attention over other keys.
  __device__ void Fold(const Partial& other) {
    float own[kHeads];
    float others[kHeads];
#pragma unroll
    for (int c = 0; c < kHeads; ++c) {
      const float largest = fmaxf(max[c], other.max[c]);
      own[c] = Exp2(max[c] - largest);
      others[c] = Exp2(other.max[c] - largest);
      max[c] = largest;
      sum[c] = __fmaf_rn(other.sum[c], others[c], sum[c] * own[c]);
    }
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        values[i][j] =
            __fmaf_rn(other.values[i][j], others[j % kHeads], values[i][j] * own[j % kHeads]);
      }
    }
  }
};

// Stores a warp's partial result of `lanes`. All lanes.
template <int kHeads, int kVectors>
__device__ void StorePartial(const Partial<kHeads, kVectors>& partial, int32_t lanes, float* to) {
  if (LaneInGroup() >= lanes) return;
  float4* at = reinterpret_cast<float4*>(to) + LaneGroup() * lanes + LaneInGroup();
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const float(&x)[4] = partial.values[i];
    __stcg(at + i * 8 * lanes, make_float4(x[0], x[1], x[2], x[3]));
  }
  if (LaneGroup() > 0) return;
  at += kVectors * 8 * lanes;
  __stcg(at,
         make_float4(
             partial.max[0], partial.max[kHeads - 1], partial.sum[0], partial.sum[kHeads - 1]));
}

// Who merges: the warp that calls, or the computing warps of a block, all of which call.
enum class Merger { kWarp, kBlock };

// How the float4s of a partial result of kLanes lanes are shared out when results are merged: in
// parts, one for each warp of the merger, and over the lanes of a warp. A lane has, of the heads of
// lane `in_group`, the vectors `vector(part, i)` of the lane of `group`.
template <int kVectors, int kLanes, Merger kMerger>
struct MergingLane {
  static constexpr int kLaneHeads = kLanes;  // lanes with heads of their own
  static constexpr int kAll = kVectors * 8 * kLanes;
  static constexpr int kOfLane = (kAll + kWarpLanes - 1) / kWarpLanes;
  static constexpr int kWarps = kMerger == Merger::kBlock ? kConsumers : 1;
  static constexpr int kParts = kOfLane < kWarps ? kOfLane : kWarps;
  static constexpr int kOwn = kOfLane / kParts;
  // A warp has them in shared memory.
  static constexpr bool kShared = kMerger == Merger::kWarp && kHopperCode;
  // Results that are on their way to a lane.
  static constexpr int kAtOnce = kShared ? 1 : kOwn >= 8 ? 2 : kOwn >= 4 ? 4 : 6;

  // The calling warp's part; kParts and above have none.
  __device__ static int32_t part() {
    return kMerger == Merger::kBlock ? static_cast<int32_t>(threadIdx.x / kWarpLanes) : 0;
  }
  // What every warp of the merger did before is seen by all of them.
  __device__ static void Synchronise() {
    if constexpr (kMerger == Merger::kBlock) {
      NamedBarrier(1, kConsumers * kWarpLanes);
    } else {
      __syncwarp();
    }
  }
  __device__ static float4 Load(const float4* at) { return kShared ? *at : __ldcg(at); }
  __device__ static int32_t index() { return static_cast<int32_t>(threadIdx.x % kWarpLanes); }
  // False where there are fewer float4s than lanes.
  __device__ static bool has_any() { return index() < kAll; }
  __device__ static int32_t in_group() { return index() % kLanes; }
  __device__ static int32_t group() { return index() / kLanes % 8; }
  __device__ static int32_t vector(int32_t part, int i) {
    return (part * kOwn + i) * (4 / kLanes) + index() / (8 * kLanes);
  }
};

// A lane's share of a part.
template <typename Lane, int kHeads>
using Folded = Partial<kHeads, Lane::kOwn>;

// Folds a part of `count` partial results, `stride` floats apart, in their order, of which the
// `known`-th (none: -1) is `own`, whatever stands there. All lanes of a warp; what other blocks
// wrote is read past the first-level cache.
template <typename Lane, int kHeads>
__device__ Folded<Lane, kHeads> FoldPartials(const float* first,
                                             int64_t stride,
                                             int32_t count,
                                             int32_t part,
                                             int32_t known = -1,
                                             const Folded<Lane, kHeads>& own = {}) {
  using Own = Folded<Lane, kHeads>;
  constexpr int kAtOnce = Lane::kAtOnce;
  const int32_t place = part * Lane::kOwn * kWarpLanes + (Lane::has_any() ? Lane::index() : 0);
  Own folded;
  folded.Clear();
#pragma unroll 1
  for (int32_t next = 0; next < count; next += kAtOnce) {
    Own parts[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int32_t last = min(next + i, count - 1);
      const auto* at = reinterpret_cast<const float4*>(first + last * stride);
      const float4 stats = Lane::Load(at + Lane::kAll + Lane::in_group());
      parts[i].max[0] = stats.x;
      parts[i].max[kHeads - 1] = stats.y;
      parts[i].sum[0] = stats.z;
      parts[i].sum[kHeads - 1] = stats.w;
#pragma unroll
      for (int v = 0; v < Lane::kOwn; ++v) {
        const float4 x = Lane::Load(at + v * kWarpLanes + place);
        parts[i].values[v][0] = x.x;
        parts[i].values[v][1] = x.y;
        parts[i].values[v][2] = x.z;
        parts[i].values[v][3] = x.w;
      }
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (next + i == known) parts[i] = own;
      if (next + i < count) folded.Fold(parts[i]);
    }
  }
  return folded;
}

// Stores what FoldPartials found of a part. All lanes.
template <typename Lane, int kHeads, int kVectors>
__device__ void StoreFolded(const Partial<kHeads, kVectors>& folded, int32_t part, float* to) {
  auto* const at = reinterpret_cast<float4*>(to);
#pragma unroll
  for (int i = 0; Lane::has_any() && i < kVectors; ++i) {
    const float(&x)[4] = folded.values[i];
    __stcg(at + (part * kVectors + i) * kWarpLanes + Lane::index(),
           make_float4(x[0], x[1], x[2], x[3]));
  }
  if (part > 0 || Lane::index() >= Lane::kLaneHeads) return;
  __stcg(at + Lane::kAll + Lane::index(),
         make_float4(folded.max[0], folded.max[kHeads - 1], folded.sum[0], folded.sum[kHeads - 1]));
}

// Takes into a head's folded values what stands in its output, [dim], of other keys, whose
// log-sum-exp to base 2 is `prior` (-inf: nothing stands there), and writes the result. The head is
// the lane's `own`; dim_of(i, j) is the dimension of its values[i][j]. Returns the log-sum-exp of
// all.
template <typename Lane, int kHeads, int kVectors, typename DimOf>
__device__ float FinishHead(
    const Partial<kHeads, kVectors>& folded, int own, float prior, DimOf dim_of, uint16_t* out) {
  const float largest = fmaxf(folded.max[own], prior);
  const float factor = Exp2(folded.max[own] - largest);
  const float others = Exp2(prior - largest);
  const float sum = __fmaf_rn(1.0f, others, folded.sum[own] * factor);
  const float inverse = sum > 0.0f ? 1.0f / sum : 0.0f;
#pragma unroll
  for (int i = 0; Lane::has_any() && i < kVectors; ++i) {
#pragma unroll
    for (int j = 0; j < 4 / kHeads; ++j) {
      uint16_t& to = out[dim_of(i, kHeads * j)];
      float value = folded.values[i][kHeads * j + own] * factor;
      if (others > 0.0f) value = __fmaf_rn(LowBf16(to), others, value);
      to = static_cast<uint16_t>(PackBf16(value * inverse, 0.0f));
    }
  }
  return sum > 0.0f ? largest + log2f(sum) : -INFINITY;
}

}  // namespace baton::kernels::cuda::diffkv
