// What one block makes of a tile of chunks of a KV head: scores of each chunk under each query
// head, in shared memory, then logits and what they add to the normalising sums.
#pragma once

#include <cstdint>

#include "kernels/cuda/paged_attention_tile.cuh"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/shadowkv_decode_workspace.cuh"
#include "kernels/cuda/shadowkv_device.cuh"
#include "kernels/cuda/shadowkv_score.cuh"
#include "kernels/kv_format/shadowkv.h"

namespace baton::kernels::cuda::shadowkv {

inline constexpr int32_t kScoreThreads = 256;
inline constexpr int32_t kScoreWarps = kScoreThreads / kWarpLanes;

// The chunks of a block: [first, first + count).
struct ChunkTile {
  int32_t first;
  int32_t count;  // 0: the sequence has none here
};
__device__ inline ChunkTile TileOfBlock(const ScoreTask& task) {
  const int32_t first = static_cast<int32_t>(blockIdx.x) * kSelectTile;
  return {first, max(0, min(kSelectTile, task.chunks.count - first))};
}

template <int kColumnTiles>
struct ScoreShared {
  // Between lines: no two lanes that write at once hit one bank.
  static constexpr int32_t kStride = kSelectTile + 4;

  ScoreTask task;
  float lines[paged::kColumns * kColumnTiles][kStride];
  uint32_t hidden[kSelectTile / kWarpLanes];  // static chunks
};

// Scores of the tile's chunks from their landmarks. Each warp.
template <int kHeadDim, int kColumnTiles>
__device__ void ScoreLandmarks(const ChunkTile& tile,
                               const uint16_t* q,
                               int32_t group,
                               ScoreShared<kColumnTiles>& shared) {
  const ScoreTask& task = shared.task;
  paged::Queries<kHeadDim, kColumnTiles> queries;
  queries.Load(q, group);
  const auto warp = static_cast<int32_t>(threadIdx.x / kWarpLanes);
  for (int32_t begin = warp * kTileRows; begin < tile.count; begin += kScoreWarps * kTileRows) {
    const int32_t rows[2] = {begin + paged::LaneGroup(), begin + paged::LaneGroup() + 8};
    // Rows past the last chunk are computed like that one and not kept.
    const int32_t low = tile.first + min(rows[0], tile.count - 1);
    const int32_t high = tile.first + min(rows[1], tile.count - 1);
    float scores[kColumnTiles][4] = {};
    MultiplyRows(
        task.rows.Chunk(task.chunks, low), task.rows.Chunk(task.chunks, high), queries, scores);
    if (task.selector == ShadowKvSelector::kBounds) {
      MultiplyRows(task.more.Chunk(task.chunks, low),
                   task.more.Chunk(task.chunks, high),
                   Magnitudes(queries),
                   scores);
    }
#pragma unroll
    for (int n = 0; n < kColumnTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int32_t column = paged::kColumns * n + 2 * paged::LaneInGroup() + i % 2;
        if (rows[i / 2] < tile.count) shared.lines[column][rows[i / 2]] = scores[n][i];
      }
    }
    __syncwarp();
  }
}

// The tokens of a lane among 16, of which the first is token `begin` of the tile. Tokens past its
// end are taken for the last.
__device__ inline void PlaceTokens(const ScoreTask& task,
                                   const ChunkTile& tile,
                                   int32_t begin,
                                   TokenPlace (&tokens)[2],
                                   bool (&inside)[2]) {
  const int32_t end = tile.count << task.chunks.token_shift;
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    const int32_t token = begin + paged::LaneGroup() + 8 * row;
    inside[row] = token < end;
    const int32_t used = min(token, end - 1);
    tokens[row] = {.chunk = tile.first + (used >> task.chunks.token_shift),
                   .token = used & (task.chunks.tokens() - 1)};
  }
}

// The largest score of every chunk's 2-bit keys. Each warp.
template <int kHeadDim, int kColumnTiles>
__device__ void ScoreTokens(const ChunkTile& tile,
                            const uint16_t* q,
                            int32_t group,
                            ScoreShared<kColumnTiles>& shared) {
  const ScoreTask& task = shared.task;
  CodedQueries<kHeadDim, kColumnTiles> queries;
  queries.Load(q, group);
  const int32_t end = tile.count << task.chunks.token_shift;
  const auto warp = static_cast<int32_t>(threadIdx.x / kWarpLanes);
  for (int32_t begin = warp * kTileRows; begin < end; begin += kScoreWarps * kTileRows) {
    TokenPlace tokens[2];
    bool inside[2];
    PlaceTokens(task, tile, begin, tokens, inside);
    float scores[kColumnTiles][4];
    ScoreCodedKeys(task, tokens, queries, scores);
#pragma unroll
    for (int n = 0; n < kColumnTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        // The chunk's tokens are neighbouring rows: lanes 4 apart. A tile has whole chunks, so
        // those past its end are among themselves.
        float best = scores[n][i];
        for (int32_t step = 1; step < task.chunks.tokens(); step *= 2) {
          best = fmaxf(best, __shfl_xor_sync(kAllLanes, best, 4 * step));
        }
        const int32_t column = paged::kColumns * n + 2 * paged::LaneInGroup() + i % 2;
        if (inside[i / 2] && tokens[i / 2].token == 0) {
          shared.lines[column][tokens[i / 2].chunk - tile.first] = best;
        }
      }
    }
    __syncwarp();
  }
}

// Marks the tile's static chunks. All threads; `hidden` is zero before.
__device__ inline void HideStatic(const ScoreTask& task, const ChunkTile& tile, uint32_t* hidden) {
  for (int32_t i = threadIdx.x; i < task.static_count; i += kScoreThreads) {
    const int32_t chunk = task.static_ids[i] - tile.first;
    if (chunk >= 0 && chunk < tile.count) {
      atomicOr(&hidden[chunk / kWarpLanes], 1u << (chunk % kWarpLanes));
    }
  }
}

// exp(x - max); 0 where x is -inf.
__device__ inline float Weight(float x, float max) {
  return x == -INFINITY ? 0.0f : Exp2((x - max) * kLog2E);
}

// Writes a line's logits and what they add to its normalising sum. One warp.
__device__ inline void WriteLine(const ChunkTile& tile,
                                 const float* scores,
                                 const uint32_t* hidden,
                                 float scale,
                                 float* logits,
                                 float2* partial) {
  constexpr int32_t kOwn = kSelectTile / kWarpLanes;
  const auto lane = static_cast<int32_t>(threadIdx.x % kWarpLanes);
  float own[kOwn];
  float max = -INFINITY;
#pragma unroll
  for (int32_t i = 0; i < kOwn; ++i) {
    const int32_t chunk = i * kWarpLanes + lane;
    const bool seen = chunk < tile.count && (hidden[i] >> lane & 1u) == 0;
    own[i] = seen ? scores[chunk] * scale : -INFINITY;
    if (chunk < tile.count) logits[tile.first + chunk] = own[i];
    max = fmaxf(max, own[i]);
  }
  max = WarpMax(max);
  float sum = 0.0f;
#pragma unroll
  for (int32_t i = 0; i < kOwn; ++i) sum += Weight(own[i], max);
  sum = WarpSum(sum);
  if (lane == 0) *partial = make_float2(max, sum);
}

}  // namespace baton::kernels::cuda::shadowkv
