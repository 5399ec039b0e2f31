// Scores of coded chunks under the query heads of one KV head, 16 rows (landmarks or tokens) of a
// warp at a time on matrix instructions, rows are the instruction's rows, query heads its columns.
//
// Landmarks are read as paged_attention_tile.cuh reads keys: which dimension is which k of a
// product is free, so a lane takes 16 contiguous bytes of its rows, and of the queries alike.
// Landmarks in codes of 8 bits become operands by one byte permutation for every two: in a half
// below 2^-14, which has no exponent, code c is the number c 2^-24. Queries are halves then, of
// each head times a power of two that brings its largest element near the largest half, which is
// exact.
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
  CodedArray more;         // deviations, or scales and zeros of codes
  CodedArray cluster_ids;  // of sequences with clusters
  const int32_t* static_ids;
  int32_t row;  // of the queries
  int32_t static_count;
  int32_t clusters;
  ShadowKvSelector selector;
  bool coded_landmarks;

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
    task.coded_landmarks = config.quantized_landmarks();
    const auto row_bytes = static_cast<int64_t>(config.landmark_bytes());
    task.rows = places.ChunkRows(&ShadowKvCodedLayout::landmarks, head, row_bytes);
    task.more = task.coded_landmarks
                    ? places.ChunkRows(&ShadowKvCodedLayout::landmark_scales, head, 4)
                    : places.ChunkRows(&ShadowKvCodedLayout::deviations, head, row_bytes);
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

// Queries for landmarks in codes.
template <int kHeadDim, int kColumnTiles>
struct HalfQueries {
  static constexpr int kParts = kHeadDim / 64;  // of 16 dimensions each, as 16 bytes of codes have

  uint32_t pairs[kColumnTiles][8 * kParts];
  // Of the heads 8 n + 2 (lane % 4) + {0, 1}: what the pairs are of the query, and their sum.
  float units[kColumnTiles][2];
  float sums[kColumnTiles][2];

  // `q` is [group, head_dim]. All lanes.
  __device__ void Load(const uint16_t* q, int32_t group) {
#pragma unroll
    for (int n = 0; n < kColumnTiles; ++n) {
      const int32_t head = paged::kColumns * n + LaneGroup();
      LoadPairs(q + head * kHeadDim, head < group, pairs[n]);
      const int32_t exponent = Exponent(pairs[n]);
      const float sum = MakeHalves(__int_as_float((268 - exponent) << 23), pairs[n]);
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const int32_t lane = 4 * (2 * LaneInGroup() + c);
        sums[n][c] = __shfl_sync(kAllLanes, sum, lane);
        units[n][c] = __int_as_float((__shfl_sync(kAllLanes, exponent, lane) - 14) << 23);
      }
    }
  }

 private:
  // The lane's elements of a query: dims [64 j + 16 (lane % 4), + 16) for each part j.
  __device__ static void LoadPairs(const uint16_t* q, bool exists, uint32_t (&pairs)[8 * kParts]) {
#pragma unroll
    for (int i = 0; i < 2 * kParts; ++i) {
      const auto* part = reinterpret_cast<const uint4*>(q + 64 * (i / 2) + 16 * LaneInGroup());
      const uint4 loaded = exists ? part[i % 2] : make_uint4(0, 0, 0, 0);
      pairs[4 * i] = loaded.x;
      pairs[4 * i + 1] = loaded.y;
      pairs[4 * i + 2] = loaded.z;
      pairs[4 * i + 3] = loaded.w;
    }
  }
  // The biased exponent of a query's largest element, kept so that 2^(14 - exponent) and its
  // inverse are numbers.
  __device__ static int32_t Exponent(const uint32_t (&pairs)[8 * kParts]) {
    float largest = 0.0f;
#pragma unroll
    for (const uint32_t pair : pairs) {
      largest = fmaxf(largest, fmaxf(fabsf(LowBf16(pair)), fabsf(HighBf16(pair))));
    }
    largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, 1));
    largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, 2));
    return min(max(__float_as_int(largest) >> 23, 15), 254);
  }
  // Makes pairs of bf16 halves, times `factor`; the sum of a query's.
  __device__ static float MakeHalves(float factor, uint32_t (&pairs)[8 * kParts]) {
    float sum = 0.0f;
#pragma unroll
    for (uint32_t& pair : pairs) {
      const float low = LowBf16(pair) * factor;
      const float high = HighBf16(pair) * factor;
      sum += low + high;
      pair = PackHalves(low, high);
    }
    sum += __shfl_xor_sync(kAllLanes, sum, 1);
    return sum + __shfl_xor_sync(kAllLanes, sum, 2);
  }
};

// scores = q . landmark of 16 rows of codes; `low` and `high` are the lane's parts of its rows
// (lane / 4 and + 8), `ranges` these rows' scales and zeros.
template <int kHeadDim, int kColumnTiles>
__device__ inline void ScoreCodedLandmarks(const uint4 (&low)[kHeadDim / 64],
                                           const uint4 (&high)[kHeadDim / 64],
                                           const float2 (&ranges)[2],
                                           const HalfQueries<kHeadDim, kColumnTiles>& queries,
                                           float (&scores)[kColumnTiles][4]) {
  constexpr uint32_t kFirst = 0x4140;  // bytes 0 and 1 of a word, each with a zero above
  constexpr uint32_t kLast = 0x4342;   // bytes 2 and 3
  float products[kColumnTiles][4] = {};
#pragma unroll
  for (int j = 0; j < kHeadDim / 64; ++j) {
    const uint32_t x[4] = {low[j].x, low[j].y, low[j].z, low[j].w};
    const uint32_t y[4] = {high[j].x, high[j].y, high[j].z, high[j].w};
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      const uint32_t codes[4] = {__byte_perm(x[w], 0, kFirst),
                                 __byte_perm(y[w], 0, kFirst),
                                 __byte_perm(x[w], 0, kLast),
                                 __byte_perm(y[w], 0, kLast)};
#pragma unroll
      for (int n = 0; n < kColumnTiles; ++n) {
        const uint32_t* pairs = queries.pairs[n] + 8 * j + 2 * w;
        MultiplyAdd(products[n], codes, {pairs[0], pairs[1]});
      }
    }
  }
#pragma unroll
  for (int n = 0; n < kColumnTiles; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 range = ranges[i / 2];
      const float score =
          __fmaf_rn(range.x, products[n][i] * 0x1p24f, range.y * queries.sums[n][i % 2]);
      scores[n][i] = score * queries.units[n][i % 2];
    }
  }
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
