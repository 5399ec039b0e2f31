// What a warp makes of tiles of 32 chunks of a KV head: logits of each chunk under each query head,
// and what the tile adds to the normalising sums.
//
// Landmarks come to a ring in shared memory that is the warp's own, sixteen rows (of codes 32) a
// step, one step ahead: no warp waits for another. A quarter of a warp reads 64 bytes of two
// neighbouring rows at once; those of odd rows lie 64 bytes further on, so that they are in other
// banks.
#pragma once

#include <cuda_fp16.h>

#include <cstddef>
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
// Of a multiprocessor: more query heads take more registers.
template <int kColumnTiles>
inline constexpr int32_t kScoreBlocks = kColumnTiles == 1 ? 3 : 2;
inline constexpr int32_t kMostTiles = 8;  // of a warp
static_assert(kSelectTile == kWarpLanes, "a word has a bit for each chunk of a tile");

// Chunks [first, first + count) of a sequence.
struct ChunkRange {
  int32_t first;
  int32_t count;

  __device__ int32_t steps() const { return (count + kTileRows - 1) / kTileRows; }
};

// Rows of an array of some chunks, by their place among them.
class ChunkRows {
 public:
  __device__ ChunkRows(const ScoreTask& task, const CodedArray& rows, const ChunkRange& chunks)
      : task_(task),
        rows_(rows),
        chunks_(chunks),
        together_(chunks.first + chunks.count <= task.chunks.prompt),
        begin_(rows.prompt + int64_t{chunks.first} * rows.chunk_bytes) {}

  __device__ const ChunkRange& chunks() const { return chunks_; }
  // Places past the last chunk are that one's.
  __device__ const std::byte* At(int32_t place) const {
    const int32_t chunk = min(place, chunks_.count - 1);
    return together_ ? begin_ + chunk * rows_.chunk_bytes
                     : rows_.Chunk(task_.chunks, chunks_.first + chunk);
  }

 private:
  const ScoreTask& task_;
  const CodedArray& rows_;
  const ChunkRange chunks_;
  const bool together_;  // behind each other: all are of the prompt
  const std::byte* const begin_;
};

// Steps of a ring, and how many are on their way when one is read.
inline constexpr int32_t kRingDepth = 2;
inline constexpr int32_t kRingAhead = kRingDepth - 1;

// Landmarks on their way to one warp, kStepRows a step. They are read once, and make room in the
// second-level cache before the logits, which are read again.
template <int kRowBytes, int kStepRows>
struct RowRing {
  static constexpr int32_t kParts = kRowBytes / 16;

  uint4 rows[kRingDepth][kStepRows][kParts];

  __device__ static int32_t Place(int32_t row, int32_t part) {
    return kParts > 4 ? part ^ (row % 2 * 4) : part;
  }

  // Starts the copies of a step. The warp.
  __device__ void Begin(const ChunkRows& source, int32_t step, uint64_t policy) {
    const auto lane = static_cast<int32_t>(threadIdx.x % kWarpLanes);
    const int32_t part = lane % kParts;
#pragma unroll
    for (int32_t row = lane / kParts; row < kStepRows; row += kWarpLanes / kParts) {
      CopyAsync16ByPolicy(&rows[step % kRingDepth][row][Place(row, part)],
                          source.At(step * kStepRows + row) + part * 16,
                          policy);
    }
  }

  // The lane's parts of a row of a step that is there.
  template <int kCount>
  __device__ void Load(int32_t step, int32_t row, uint4 (&parts)[kCount]) const {
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      parts[j] = rows[step % kRingDepth][row][Place(row, 4 * j + LaneInGroup())];
    }
  }
};

// Landmarks of bf16.
template <int kHeadDim>
struct LandmarkRing {
  RowRing<2 * kHeadDim, kTileRows> rows;

  // Starts the copies of a step; they are a group, empty behind the last step. The warp.
  __device__ void Begin(const ChunkRows& source, int32_t step, uint64_t policy) {
    if (step < source.chunks().steps()) rows.Begin(source, step, policy);
    CommitCopies();
  }
};

// Landmarks in codes, a tile a step, with their scales and zeros.
template <int kHeadDim>
struct CodedLandmarkRing {
  RowRing<kHeadDim, kSelectTile> codes;
  __half2 ranges[kRingDepth][kSelectTile];

  // The same.
  __device__ void Begin(const ChunkRows& source,
                        const ChunkRows& range_source,
                        int32_t step,
                        uint64_t policy) {
    if (step * kSelectTile < source.chunks().count) {
      codes.Begin(source, step, policy);
      const auto lane = static_cast<int32_t>(threadIdx.x % kWarpLanes);
      CopyAsync4(&ranges[step % kRingDepth][lane], range_source.At(step * kSelectTile + lane));
    }
    CommitCopies();
  }
};

template <int kHeadDim>
union ScoreRing {
  LandmarkRing<kHeadDim> landmarks;
  CodedLandmarkRing<kHeadDim> coded;
};

template <int kHeadDim>
struct alignas(128) ScoreShared {
  ScoreRing<kHeadDim> rings[kScoreWarps];
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
        const float max = MaxAcrossGroups(max_[n][c]);
        const float sum = SumAcrossGroups(sum_[n][c] * Weight(max_[n][c], max));
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
      max = MaxAcrossGroups(max);
      float sum = 0.0f;
#pragma unroll
      for (int r = 0; r < 2 * kTileSteps; ++r) {
        sum += Weight(scores.steps[r / 2][n][r % 2 * 2 + c], max);
      }
      sum = SumAcrossGroups(sum);
      if (used && LaneGroup() == 0) {
        lines.partials[column * int64_t{lines.partial_stride} + tile] = make_float2(max, sum);
      }
    }
  }
}

// Scores of a step that is in the ring.
template <int kHeadDim, int kColumnTiles>
__device__ void ScoreStep(const ScoreTask& task,
                          const ChunkRows& rows,
                          int32_t step,
                          const LandmarkRing<kHeadDim>& ring,
                          const paged::Queries<kHeadDim, kColumnTiles>& queries,
                          float (&scores)[kColumnTiles][4]) {
  uint4 low[kHeadDim / 32];
  uint4 high[kHeadDim / 32];
  ring.rows.Load(step, LaneGroup(), low);
  ring.rows.Load(step, LaneGroup() + 8, high);
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

// Starts the copies of the first steps of tiles [first, end), for the scoring of either kind of
// landmarks. The warp.
template <int kHeadDim>
__device__ void BeginLandmarks(const ScoreTask& task,
                               int32_t first,
                               int32_t end,
                               ScoreRing<kHeadDim>& ring) {
  const ChunkRange chunks = ChunksOf(task, first, end);
  const ChunkRows rows(task, task.rows, chunks);
  const ChunkRows ranges(task, task.more, chunks);
  const uint64_t policy = ReadOncePolicy();
  for (int32_t step = 0; step < kRingAhead; ++step) {
    if (task.coded_landmarks) {
      ring.coded.Begin(rows, ranges, step, policy);
    } else {
      ring.landmarks.Begin(rows, step, policy);
    }
  }
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
  const ChunkRows rows(task, task.rows, ChunksOf(task, first, end));
  const int32_t count = rows.chunks().count;
  const uint64_t policy = ReadOncePolicy();
  for (int32_t tile = 0; tile < end - first; ++tile) {
    TileScores<kColumnTiles> scores = {};
#pragma unroll
    for (int32_t in_tile = 0; in_tile < kTileSteps; ++in_tile) {
      const int32_t step = tile * kTileSteps + in_tile;
      __syncwarp();  // all lanes have read the step that is written over
      ring.Begin(rows, step + kRingAhead, policy);
      WaitForCopies<kRingAhead>();
      __syncwarp();
      if (step < rows.chunks().steps()) {
        ScoreStep(task, rows, step, ring, queries, scores.steps[in_tile]);
      }
    }
    WriteTile(lines, first + tile, count - tile * kSelectTile, hidden[tile], scores);
  }
}

// The same from landmarks in codes.
template <int kHeadDim, int kColumnTiles>
__device__ void ScoreCodedTiles(const ScoreTask& task,
                                int32_t first,
                                int32_t end,
                                const uint32_t* hidden,
                                const HalfQueries<kHeadDim, kColumnTiles>& queries,
                                const ScoreLines& lines,
                                CodedLandmarkRing<kHeadDim>& ring) {
  const ChunkRange chunks = ChunksOf(task, first, end);
  const ChunkRows rows(task, task.rows, chunks);
  const ChunkRows range_rows(task, task.more, chunks);
  const uint64_t policy = ReadOncePolicy();
  for (int32_t tile = 0; tile < end - first; ++tile) {
    __syncwarp();  // all lanes have read the step that is written over
    ring.Begin(rows, range_rows, tile + kRingAhead, policy);
    WaitForCopies<kRingAhead>();
    __syncwarp();
    TileScores<kColumnTiles> scores;
#pragma unroll
    for (int32_t step = 0; step < kTileSteps; ++step) {
      const int32_t row = step * kTileRows + LaneGroup();
      uint4 low[kHeadDim / 64];
      uint4 high[kHeadDim / 64];
      ring.codes.Load(tile, row, low);
      ring.codes.Load(tile, row + 8, high);
      const __half2* ranges = ring.ranges[tile % kRingDepth];
      const float2 own[2] = {__half22float2(ranges[row]), __half22float2(ranges[row + 8])};
      ScoreCodedLandmarks(low, high, own, queries, scores.steps[step]);
    }
    WriteTile(lines, first + tile, chunks.count - tile * kSelectTile, hidden[tile], scores);
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
