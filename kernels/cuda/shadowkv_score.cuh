// Scores of coded chunks under the query heads of one KV head, 16 rows (landmarks or tokens) of a
// warp at a time on matrix instructions, rows are the instruction's rows, query heads its columns.
//
// Landmarks are read as paged_attention_tile.cuh reads keys: which dimension is which k of a
// product is free, so a lane takes 16 contiguous bytes of its rows, and of the queries alike.
//
// Codes of 2 bits become operands by bit operations: a code in the upper bits of the mantissa of 1
// is the number 1 + code / 4. What the 1 adds to a product is the sum of the query, so
// q . codes = 4 (product - sum(q)), and q . key = scale (q . codes) + zero sum(q). A lane has dims
// [t dim / 4, (t + 1) dim / 4) of its rows, t = lane % 4; of 16 of them, a word, the elements r and
// r + 8 make a pair.
#pragma once

#include <cuda_fp16.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/bf16.cuh"
#include "kernels/cuda/paged_attention_tile.cuh"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/ptx_bf16.cuh"
#include "kernels/cuda/shadowkv_device.cuh"
#include "kernels/cuda/warp.cuh"
#include "kernels/kv_format/shadowkv.h"
#include "kernels/ops/shadowkv_params.h"

namespace baton::kernels::cuda::shadowkv {

inline constexpr int32_t kTileRows = 16;

// One KV head of one sequence, as all threads of a block need it.
struct ScoreTask {
  CodedChunks chunks;
  CodedArray rows;         // landmarks, or 2-bit keys
  CodedArray more;         // deviations, or scales and zeros of 2-bit keys
  CodedArray cluster_ids;  // of sequences with clusters
  const int32_t* static_ids;
  int32_t row;  // of the queries
  int32_t static_count;
  int32_t clusters;
  ShadowKvSelector selector;

  __device__ bool coded_keys() const { return selector == ShadowKvSelector::kQ2; }
};

__device__ inline ScoreTask MakeScoreTask(const ShadowKvSequence& sequence,
                                          int64_t head,
                                          int64_t max_chunks) {
  const SequencePlaces places(sequence);
  const ShadowKvConfig& config = places.config();
  ScoreTask task = {};
  task.row = sequence.row;
  task.chunks = places.Chunks(max_chunks);
  task.selector = config.selector;
  task.clusters = config.value_clusters;
  const auto static_count = static_cast<int32_t>(places.layout().static_chunks);
  task.static_count = static_count;
  task.static_ids = reinterpret_cast<const int32_t*>(places.Prompt(places.layout().static_ids)) +
                    head * static_count;
  if (task.coded_keys()) {
    task.rows = places.TokenRows(&ShadowKvCodedLayout::key_codes, head, config.head_dim / 4);
    task.more = places.TokenRows(&ShadowKvCodedLayout::key_scales, head, 4);
    task.cluster_ids = places.TokenRows(&ShadowKvCodedLayout::cluster_ids, head, 1);
  } else {
    const int64_t row_bytes = int64_t{config.head_dim} * 2;
    task.rows = places.ChunkRows(&ShadowKvCodedLayout::landmarks, head, row_bytes);
    task.more = places.ChunkRows(&ShadowKvCodedLayout::deviations, head, row_bytes);
  }
  return task;
}

// The lane's parts of a row.
template <int kParts>
__device__ inline void LoadRow(const std::byte* row, uint4 (&parts)[kParts]) {
#pragma unroll
  for (int j = 0; j < kParts; ++j) {
    parts[j] = __ldg(reinterpret_cast<const uint4*>(row) + 4 * j + LaneInGroup());
  }
}

// products += rows x queries; `low` and `high` are the lane's parts of its rows (lane / 4 and + 8).
template <int kHeadDim, int kColumnTiles>
__device__ inline void MultiplyRows(const uint4 (&low)[kHeadDim / 32],
                                    const uint4 (&high)[kHeadDim / 32],
                                    const paged::Queries<kHeadDim, kColumnTiles>& queries,
                                    float (&products)[kColumnTiles][4]) {
#pragma unroll
  for (int j = 0; j < kHeadDim / 32; ++j) {
    const uint4 x = low[j];
    const uint4 y = high[j];
#pragma unroll
    for (int n = 0; n < kColumnTiles; ++n) {
      const uint4 q = queries.parts[n][j];
      MultiplyAddBf16(products[n], {x.x, y.x, x.y, y.y}, {q.x, q.y});
      MultiplyAddBf16(products[n], {x.z, y.z, x.w, y.w}, {q.z, q.w});
    }
  }
}

// The queries without their signs.
template <int kHeadDim, int kColumnTiles>
__device__ inline paged::Queries<kHeadDim, kColumnTiles> Magnitudes(
    const paged::Queries<kHeadDim, kColumnTiles>& queries) {
  constexpr uint32_t kMask = 0x7fff7fffu;
  paged::Queries<kHeadDim, kColumnTiles> result;
#pragma unroll
  for (int n = 0; n < kColumnTiles; ++n) {
#pragma unroll
    for (int j = 0; j < kHeadDim / 32; ++j) {
      const uint4 q = queries.parts[n][j];
      result.parts[n][j] = make_uint4(q.x & kMask, q.y & kMask, q.z & kMask, q.w & kMask);
    }
  }
  return result;
}

// Queries for 2-bit keys.
template <int kHeadDim, int kColumnTiles>
struct CodedQueries {
  static constexpr int kWords = kHeadDim / 64;  // of a lane and row

  uint32_t pairs[kColumnTiles][8 * kWords];
  float sums[kColumnTiles][2];  // of the heads 8 n + 2 (lane % 4) + {0, 1}

  // `q` is [group, head_dim]. All lanes.
  __device__ void Load(const uint16_t* q, int32_t group) {
#pragma unroll
    for (int n = 0; n < kColumnTiles; ++n) {
      const int32_t head = paged::kColumns * n + LaneGroup();
      const auto* part =
          reinterpret_cast<const uint4*>(q + head * kHeadDim + LaneInGroup() * kHeadDim / 4);
      float sum = 0.0f;
#pragma unroll
      for (int w = 0; w < kWords; ++w) {
        const uint4 none = make_uint4(0, 0, 0, 0);
        LoadWord(head < group ? part[2 * w] : none, head < group ? part[2 * w + 1] : none, n, w);
#pragma unroll
        for (int r = 0; r < 8; ++r) {
          sum += LowBf16(pairs[n][8 * w + r]) + HighBf16(pairs[n][8 * w + r]);
        }
      }
      sum += __shfl_xor_sync(kAllLanes, sum, 1);
      sum += __shfl_xor_sync(kAllLanes, sum, 2);
      for (int c = 0; c < 2; ++c) {
        sums[n][c] = __shfl_sync(kAllLanes, sum, 4 * (2 * LaneInGroup() + c));
      }
    }
  }

 private:
  // Pairs of 16 elements, of which `first` are the lower ones.
  __device__ void LoadWord(uint4 first, uint4 second, int n, int w) {
    const uint32_t x[4] = {first.x, first.y, first.z, first.w};
    const uint32_t y[4] = {second.x, second.y, second.z, second.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      pairs[n][8 * w + 2 * i] = PairOfLow(x[i], y[i]);
      pairs[n][8 * w + 2 * i + 1] = PairOfHigh(x[i], y[i]);
    }
  }
};

// The codes r and r + 8 of a word as 1 + code / 4.
__device__ inline uint32_t CodePair(uint32_t word, int r) {
  const uint32_t shifted = r < 3 ? word << (5 - 2 * r) : word >> (2 * r - 5);
  return AndOr(shifted, 0x00600060u, 0x3f803f80u);
}

// The lane's words of a row of codes.
template <int kWords>
__device__ inline void LoadCodes(const std::byte* row, uint32_t (&words)[kWords]) {
  static_assert(kWords == 1 || kWords == 2);
  if constexpr (kWords == 2) {
    const uint2 loaded = __ldg(reinterpret_cast<const uint2*>(row) + LaneInGroup());
    words[0] = loaded.x;
    words[1] = loaded.y;
  } else {
    words[0] = __ldg(reinterpret_cast<const uint32_t*>(row) + LaneInGroup());
  }
}

// A token of the rows of a tile, inside its chunk.
struct TokenPlace {
  int32_t chunk;
  int32_t token;
};

// scores[n][2 row + c] of 16 tokens: q . key of the lane's tokens `low` and `high`.
template <int kHeadDim, int kColumnTiles>
__device__ inline void ScoreCodedKeys(const ScoreTask& task,
                                      const TokenPlace (&tokens)[2],
                                      const CodedQueries<kHeadDim, kColumnTiles>& queries,
                                      float (&scores)[kColumnTiles][4]) {
  constexpr int kWords = kHeadDim / 64;
  uint32_t words[2][kWords];
  float2 ranges[2];
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    const TokenPlace& at = tokens[row];
    LoadCodes(task.rows.Chunk(task.chunks, at.chunk) + at.token * (kHeadDim / 4), words[row]);
    const std::byte* range = task.more.Chunk(task.chunks, at.chunk) + at.token * 4;
    ranges[row] = __half22float2(*reinterpret_cast<const __half2*>(range));
  }
#pragma unroll
  for (int n = 0; n < kColumnTiles; ++n) {
    float products[4] = {};
#pragma unroll
    for (int w = 0; w < kWords; ++w) {
#pragma unroll
      for (int r = 0; r < 8; r += 2) {
        MultiplyAddBf16(products,
                        {CodePair(words[0][w], r),
                         CodePair(words[1][w], r),
                         CodePair(words[0][w], r + 1),
                         CodePair(words[1][w], r + 1)},
                        {queries.pairs[n][8 * w + r], queries.pairs[n][8 * w + r + 1]});
      }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float sum = queries.sums[n][i % 2];
      const float2 range = ranges[i / 2];
      scores[n][i] = __fmaf_rn(range.x, 4.0f * (products[i] - sum), range.y * sum);
    }
  }
}

}  // namespace baton::kernels::cuda::shadowkv
