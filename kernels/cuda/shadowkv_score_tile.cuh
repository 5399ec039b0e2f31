// What a warp makes of tiles of 32 chunks of a KV head: logits of each chunk under each query head,
// and what the tile adds to the normalising sums.
//
// Landmarks come to a ring in shared memory that is the warp's own, sixteen rows a step, two steps
// ahead: no warp waits for another. A quarter of a warp reads 64 bytes of two neighbouring rows at
// once; those of odd rows lie 64 bytes further on, so that they are in other banks.
#pragma once

#include <cstdint>

#include "kernels/cuda/paged_attention_tile.cuh"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/ptx_copy_policy.cuh"
#include "kernels/cuda/ptx_tile.cuh"
#include "kernels/cuda/shadowkv_decode_workspace.cuh"
#include "kernels/cuda/shadowkv_device.cuh"
#include "kernels/cuda/shadowkv_score.cuh"
#include "kernels/cuda/warp.cuh"
#include "kernels/kv_format/shadowkv.h"

namespace baton::kernels::cuda::shadowkv {

inline constexpr int32_t kScoreThreads = 256;
inline constexpr int32_t kScoreWarps = kScoreThreads / kWarpLanes;
inline constexpr int32_t kScoreBlocks = 2;  // of a multiprocessor
inline constexpr int32_t kMostTiles = 8;    // of a warp
static_assert(kSelectTile == kWarpLanes, "a word has a bit for each chunk of a tile");

// Chunks [first, first + count) of a sequence.
struct ChunkRange {
  int32_t first;
  int32_t count;

  __device__ int32_t steps() const { return (count + kTileRows - 1) / kTileRows; }
};

// The landmarks of some chunks, by their place among them.
class LandmarkRows {
 public:
  __device__ LandmarkRows(const ScoreTask& task, const ChunkRange& chunks)
      : task_(task),
        chunks_(chunks),
        together_(chunks.first + chunks.count <= task.chunks.prompt),
        begin_(task.rows.prompt + int64_t{chunks.first} * task.rows.chunk_bytes) {}

  __device__ const ChunkRange& chunks() const { return chunks_; }
  // Places past the last chunk are that one's.
  __device__ const std::byte* At(int32_t place) const {
    const int32_t chunk = min(place, chunks_.count - 1);
    return together_ ? begin_ + chunk * task_.rows.chunk_bytes
                     : task_.rows.Chunk(task_.chunks, chunks_.first + chunk);
  }

 private:
  const ScoreTask& task_;
  const ChunkRange chunks_;
  const bool together_;  // behind each other: all are of the prompt
  const std::byte* const begin_;
};

// Landmarks on their way to one warp. They are read once, and make room in the second-level cache
// before the logits, which are read again.
template <int kHeadDim>
struct LandmarkRing {
  static constexpr int32_t kDepth = 3;  // steps
  static constexpr int32_t kAhead = kDepth - 1;
  static constexpr int32_t kParts = kHeadDim / 8;  // of 16 bytes

  uint4 rows[kDepth][kTileRows][kParts];

  __device__ static int32_t Place(int32_t row, int32_t part) { return part ^ (row % 2 * 4); }

  // Starts the copies of a step; they are a group, empty behind the last step. The warp.
  __device__ void Begin(const LandmarkRows& source, int32_t step, uint64_t policy) {
    const auto lane = static_cast<int32_t>(threadIdx.x % kWarpLanes);
    const int32_t part = lane % kParts;
    if (step < source.chunks().steps()) {
#pragma unroll
      for (int32_t row = lane / kParts; row < kTileRows; row += kWarpLanes / kParts) {
        CopyAsync16ByPolicy(&rows[step % kDepth][row][Place(row, part)],
                            source.At(step * kTileRows + row) + part * 16,
                            policy);
      }
    }
    CommitCopies();
  }

  // The lane's parts of a row of a step that is there.
  __device__ void Load(int32_t step, int32_t row, uint4 (&parts)[kHeadDim / 32]) const {
#pragma unroll
    for (int j = 0; j < kHeadDim / 32; ++j) {
      parts[j] = rows[step % kDepth][row][Place(row, 4 * j + LaneInGroup())];
    }
  }
};

template <int kHeadDim>
struct alignas(128) ScoreShared {
  LandmarkRing<kHeadDim> rings[kScoreWarps];
  uint32_t hidden[kScoreWarps * kMostTiles];  // static chunks of the block's tiles
  ScoreTask task;
};

// Marks the static chunks of `tiles` tiles, the first of which begins at chunk `first`. All threads
// of the block; `hidden` is zero before.
__device__ inline void HideStatic(const ScoreTask& task,
                                  int32_t first,
                                  int32_t tiles,
                                  uint32_t* hidden) {
  for (int32_t i = threadIdx.x; i < task.static_count; i += kScoreThreads) {
    const int32_t chunk = task.static_ids[i] - first;
    if (chunk >= 0 && chunk < tiles * kSelectTile) {
      atomicOr(&hidden[chunk / kSelectTile], 1u << (chunk % kSelectTile));
    }
  }
}

// exp(x - max); 0 where x is -inf.
__device__ inline float Weight(float x, float max) {
  return x == -INFINITY ? 0.0f : Exp2((x - max) * kLog2E);
}

// Where a warp's logits go: lines of the block's query heads.
struct ScoreLines {
  float* logits;         // of the first line
  int64_t chunk_stride;  // from line to line
  float2* partials;
  int32_t partial_stride;
  int32_t group;
  float scale;
};

// The query head of the lane's column c of column tile n.
__device__ inline int32_t LaneColumn(int n, int c) {
  return paged::kColumns * n + 2 * LaneInGroup() + c;
}

// Logits of a tile that come one by one, and a lane's share of its sums.
template <int kColumnTiles>
class TileLogits {
 public:
  __device__ TileLogits(const ScoreLines& lines, int32_t tile, uint32_t hidden)
      : lines_(lines), tile_(tile), hidden_(hidden) {
    for (int n = 0; n < kColumnTiles; ++n) {
      for (int c = 0; c < 2; ++c) {
        max_[n][c] = -INFINITY;
        sum_[n][c] = 0.0f;
      }
    }
  }

  // Takes the score of chunk `place` of the tile under the lane's column c of column tile n.
  __device__ void Take(int n, int c, int32_t place, float score) {
    const int32_t column = LaneColumn(n, c);
    if (column >= lines_.group) return;
    const bool seen = (hidden_ >> place & 1u) == 0;
    const float logit = seen ? score * lines_.scale : -INFINITY;
    lines_.logits[column * lines_.chunk_stride + tile_ * kSelectTile + place] = logit;
    const float largest = fmaxf(max_[n][c], logit);
    sum_[n][c] = sum_[n][c] * Weight(max_[n][c], largest) + Weight(logit, largest);
    max_[n][c] = largest;
  }

  // Writes the tile's sums. The warp.
  __device__ void WriteSums() const {
#pragma unroll
    for (int n = 0; n < kColumnTiles; ++n) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const float max = paged::ColumnMax(max_[n][c]);
        const float sum = paged::ColumnSum(sum_[n][c] * Weight(max_[n][c], max));
        const int32_t column = LaneColumn(n, c);
        if (LaneGroup() == 0 && column < lines_.group) {
          lines_.partials[column * int64_t{lines_.partial_stride} + tile_] = make_float2(max, sum);
        }
      }
    }
  }

 private:
  const ScoreLines& lines_;
  const int32_t tile_;
  const uint32_t hidden_;
  float max_[kColumnTiles][2];
  float sum_[kColumnTiles][2];
};

inline constexpr int32_t kTileSteps = kSelectTile / kTileRows;

// Scores of a tile as products leave them: of step s, row lane / 4 + 8 (i / 2), column i % 2.
template <int kColumnTiles>
struct TileScores {
  float steps[kTileSteps][kColumnTiles][4];
};

// Writes a tile's logits and sums; `count` of its chunks exist. The warp.
template <int kColumnTiles>
__device__ void WriteTile(const ScoreLines& lines,
                          int32_t tile,
                          int32_t count,
                          uint32_t hidden,
                          TileScores<kColumnTiles>& scores) {
#pragma unroll
  for (int n = 0; n < kColumnTiles; ++n) {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const int32_t column = LaneColumn(n, c);
      const bool used = column < lines.group;
      float* logits = lines.logits + column * lines.chunk_stride + tile * kSelectTile;
      float max = -INFINITY;
#pragma unroll
      for (int r = 0; r < 2 * kTileSteps; ++r) {
        float& score = scores.steps[r / 2][n][r % 2 * 2 + c];
        const int32_t place = 8 * r + LaneGroup();
        const bool seen = place < count && (hidden >> place & 1u) == 0;
        score = seen ? score * lines.scale : -INFINITY;
        if (used && place < count) logits[place] = score;
        max = fmaxf(max, score);
      }
      max = paged::ColumnMax(max);
      float sum = 0.0f;
#pragma unroll
      for (int r = 0; r < 2 * kTileSteps; ++r) {
        sum += Weight(scores.steps[r / 2][n][r % 2 * 2 + c], max);
      }
      sum = paged::ColumnSum(sum);
      if (used && LaneGroup() == 0) {
        lines.partials[column * int64_t{lines.partial_stride} + tile] = make_float2(max, sum);
      }
    }
  }
}

// Scores of a step that is in the ring.
template <int kHeadDim, int kColumnTiles>
__device__ void ScoreStep(const ScoreTask& task,
                          const LandmarkRows& rows,
                          int32_t step,
                          const LandmarkRing<kHeadDim>& ring,
                          const paged::Queries<kHeadDim, kColumnTiles>& queries,
                          float (&scores)[kColumnTiles][4]) {
  uint4 low[kHeadDim / 32];
  uint4 high[kHeadDim / 32];
  ring.Load(step, LaneGroup(), low);
  ring.Load(step, LaneGroup() + 8, high);
  MultiplyRows(low, high, queries, scores);
  if (task.selector != ShadowKvSelector::kBounds) return;
  const ChunkRange& chunks = rows.chunks();
  const int32_t place = step * kTileRows + LaneGroup();
  const int32_t low_chunk = chunks.first + min(place, chunks.count - 1);
  const int32_t high_chunk = chunks.first + min(place + 8, chunks.count - 1);
  LoadRow(task.more.Chunk(task.chunks, low_chunk), low);
  LoadRow(task.more.Chunk(task.chunks, high_chunk), high);
  MultiplyRows(low, high, Magnitudes(queries), scores);
}

// The chunks of tiles [first, end).
__device__ inline ChunkRange ChunksOf(const ScoreTask& task, int32_t first, int32_t end) {
  const int32_t begin = first * kSelectTile;
  return {begin, min(end * kSelectTile, task.chunks.count) - begin};
}

// Starts the copies of the first steps of tiles [first, end), for ScoreLandmarks. The warp.
template <int kHeadDim>
__device__ void BeginLandmarks(const ScoreTask& task,
                               int32_t first,
                               int32_t end,
                               LandmarkRing<kHeadDim>& ring) {
  const LandmarkRows rows(task, ChunksOf(task, first, end));
  const uint64_t policy = ReadOncePolicy();
  for (int32_t step = 0; step < ring.kAhead; ++step) ring.Begin(rows, step, policy);
}

// Scores tiles [first, end) from their landmarks, the first steps of which are on their way.
// `hidden`: of tile `first`. The warp.
template <int kHeadDim, int kColumnTiles>
__device__ void ScoreLandmarks(const ScoreTask& task,
                               int32_t first,
                               int32_t end,
                               const uint32_t* hidden,
                               const paged::Queries<kHeadDim, kColumnTiles>& queries,
                               const ScoreLines& lines,
                               LandmarkRing<kHeadDim>& ring) {
  const LandmarkRows rows(task, ChunksOf(task, first, end));
  const int32_t count = rows.chunks().count;
  const uint64_t policy = ReadOncePolicy();
  for (int32_t tile = 0; tile < end - first; ++tile) {
    TileScores<kColumnTiles> scores = {};
#pragma unroll
    for (int32_t in_tile = 0; in_tile < kTileSteps; ++in_tile) {
      const int32_t step = tile * kTileSteps + in_tile;
      __syncwarp();  // all lanes have read the step that is written over
      ring.Begin(rows, step + ring.kAhead, policy);
      WaitForCopies<ring.kAhead>();
      __syncwarp();
      if (step < rows.chunks().steps()) {
        ScoreStep(task, rows, step, ring, queries, scores.steps[in_tile]);
      }
    }
    WriteTile(lines, first + tile, count - tile * kSelectTile, hidden[tile], scores);
  }
}

// The tokens of a lane among 16, of which the first is token `begin` of the chunks. Tokens past
// their end are taken for the last.
__device__ inline void PlaceTokens(const ScoreTask& task,
                                   const ChunkRange& chunks,
                                   int32_t begin,
                                   TokenPlace (&tokens)[2],
                                   bool (&inside)[2]) {
  const int32_t end = chunks.count << task.chunks.token_shift;
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    const int32_t token = begin + LaneGroup() + 8 * row;
    inside[row] = token < end;
    const int32_t used = min(token, end - 1);
    tokens[row] = {.chunk = chunks.first + (used >> task.chunks.token_shift),
                   .token = used & (task.chunks.tokens() - 1)};
  }
}

// Scores tiles [first, end) from the largest score of every chunk's 2-bit keys. The warp.
template <int kHeadDim, int kColumnTiles>
__device__ void ScoreTokens(const ScoreTask& task,
                            int32_t first,
                            int32_t end,
                            const uint32_t* hidden,
                            const CodedQueries<kHeadDim, kColumnTiles>& queries,
                            const ScoreLines& lines) {
  for (int32_t tile = first; tile < end; ++tile) {
    const ChunkRange chunks = {tile * kSelectTile,
                               min(kSelectTile, task.chunks.count - tile * kSelectTile)};
    TileLogits<kColumnTiles> logits(lines, tile, hidden[tile - first]);
    const int32_t token_end = chunks.count << task.chunks.token_shift;
    for (int32_t begin = 0; begin < token_end; begin += kTileRows) {
      TokenPlace tokens[2];
      bool inside[2];
      PlaceTokens(task, chunks, begin, tokens, inside);
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
          const TokenPlace& at = tokens[i / 2];
          if (inside[i / 2] && at.token == 0) {
            logits.Take(n, i % 2, at.chunk - chunks.first, best);
          }
        }
      }
      __syncwarp();
    }
    logits.WriteSums();
  }
}

}  // namespace baton::kernels::cuda::shadowkv
