// Scores of one warp: 32 keys of one KV head against 8 query rows, one query head after another.
//
// Keys are the rows of the product and query rows its columns: scores [tokens x rows] = K Q^T. A
// head of the group is a product of its own, so that what is taken over the group's heads stays in
// a lane's registers, and any group is served without padding.
//
// Keys are read once, from the pages straight into operands; queries come from the first-level
// cache, where the warps of a multiprocessor share them. Which dimension is which k of the product
// is free to choose: lane (g, t) = (lane / 4, lane % 4) reads dims [32 j + 8 t, + 8), 16 contiguous
// bytes, of its tokens and of its query for the k steps 2 j and 2 j + 1.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/ptx_bf16.cuh"
#include "kernels/cuda/warp.cuh"
#include "kernels/kv_format/dense.h"
#include "kernels/ops/diffkv_params.h"

namespace baton::kernels::cuda::probability {

// Of a warp's product.
inline constexpr int32_t kTileTokens = 32;
inline constexpr int32_t kTileRows = 8;
// Of them, a lane has the scores of tokens g + 8 i and rows 2 t + c.
inline constexpr int32_t kLaneTokens = 4;
inline constexpr int32_t kLaneRows = 2;

// Keys first to last, counted from key_begin; none at first.
struct KeyRange {
  int32_t first = INT32_MAX;
  int32_t last = -1;

  __device__ bool Has(int32_t key) const { return key >= first && key <= last; }
  // Whether any of the `count` keys from `begin` on is among them.
  __device__ bool Meets(int32_t begin, int32_t count) const {
    return first < begin + count && last >= begin;
  }
};

// What a row sees; nothing if there is no such row.
__device__ inline KeyRange SeenBy(const AttentionProbabilitiesParams& params, int64_t row) {
  if (row >= params.rows) return {};
  const int32_t last = __ldg(params.positions + row) - params.key_begin;
  const int32_t window = params.sliding_window;
  return {.first = window > 0 ? max(last - window + 1, 0) : 0, .last = last};
}

// From the first to the last key that any of rows [begin, end) sees. All lanes.
__device__ inline KeyRange SeenByAny(const AttentionProbabilitiesParams& params,
                                     int64_t begin,
                                     int64_t end) {
  KeyRange all;
  for (int64_t row = begin + threadIdx.x % kWarpLanes; row < end; row += kWarpLanes) {
    const KeyRange seen = SeenBy(params, row);
    all.first = min(all.first, seen.first);
    all.last = max(all.last, seen.last);
  }
  return {.first = __reduce_min_sync(kAllLanes, all.first),
          .last = __reduce_max_sync(kAllLanes, all.last)};
}

// The lane's first 16 bytes of a key.
__device__ inline const uint4* LaneKey(const AttentionProbabilitiesParams& params,
                                       int32_t kv_head,
                                       int32_t key) {
  const DensePageLayout& layout = params.pages.layout;
  const int32_t token = params.key_begin + key;
  const int32_t page = token / layout.page_tokens;
  const auto id = static_cast<size_t>(__ldg(params.page_table + page));
  const std::byte* bytes = params.pages.base + id * layout.stride_bytes() +
                           layout.key_offset(kv_head, token - page * layout.page_tokens);
  return reinterpret_cast<const uint4*>(bytes) + LaneInGroup();
}

// The warp's keys as first operand.
template <int kHeadDim>
struct TileKeys {
  uint32_t operands[kLaneTokens / 2][kHeadDim / 16][4];

  // Keys [begin, begin + 32) of a KV head. Those outside `held` are not touched and become zeros.
  __device__ void Load(const AttentionProbabilitiesParams& params,
                       int32_t kv_head,
                       int32_t begin,
                       const KeyRange& held) {
#pragma unroll
    for (int i = 0; i < kLaneTokens; ++i) {
      const int32_t key = begin + LaneGroup() + 8 * i;
      const bool present = held.Has(key);
      const uint4* source = present ? LaneKey(params, kv_head, key) : nullptr;
#pragma unroll
      for (int j = 0; j < kHeadDim / 32; ++j) {
        const uint4 part = present ? __ldg(source + 4 * j) : make_uint4(0, 0, 0, 0);
        operands[i / 2][2 * j][i % 2] = part.x;
        operands[i / 2][2 * j][2 + i % 2] = part.y;
        operands[i / 2][2 * j + 1][i % 2] = part.z;
        operands[i / 2][2 * j + 1][2 + i % 2] = part.w;
      }
    }
  }
};

// A query head of row `row` + g as second operand; zeros if there is no such row.
template <int kHeadDim>
struct TileQueries {
  uint4 parts[kHeadDim / 32];

  __device__ void Load(const AttentionProbabilitiesParams& params, int64_t row, int64_t head) {
    const int64_t own = row + LaneGroup();
    const auto* source = reinterpret_cast<const uint4*>(static_cast<const uint16_t*>(params.q) +
                                                        own * params.q_stride + head * kHeadDim);
#pragma unroll
    for (int j = 0; j < kHeadDim / 32; ++j) {
      parts[j] = own < params.rows ? __ldg(source + 4 * j + LaneInGroup()) : make_uint4(0, 0, 0, 0);
    }
  }
};

template <int kHeadDim>
__device__ void Scores(const TileKeys<kHeadDim>& keys,
                       const TileQueries<kHeadDim>& queries,
                       float (&scores)[kLaneTokens][kLaneRows]) {
  float sums[kLaneTokens / 2][4] = {};  // rows g and g + 8 of 16 tokens
#pragma unroll
  for (int j = 0; j < kHeadDim / 32; ++j) {
    const uint4 q = queries.parts[j];
#pragma unroll
    for (int m = 0; m < kLaneTokens / 2; ++m) {
      MultiplyAddBf16(sums[m], keys.operands[m][2 * j], {q.x, q.y});
    }
#pragma unroll
    for (int m = 0; m < kLaneTokens / 2; ++m) {
      MultiplyAddBf16(sums[m], keys.operands[m][2 * j + 1], {q.z, q.w});
    }
  }
#pragma unroll
  for (int i = 0; i < kLaneTokens; ++i) {
#pragma unroll
    for (int c = 0; c < kLaneRows; ++c) scores[i][c] = sums[i / 2][2 * (i % 2) + c];
  }
}

}  // namespace baton::kernels::cuda::probability
