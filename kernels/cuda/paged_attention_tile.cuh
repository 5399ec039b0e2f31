// Attention of one warp over one tile: 16 of the 64 tokens of a stage in shared memory, which are
// bf16 or, with a scale for each token's keys and values, f8e4m3.
//
// Queries are the columns of both products: scores [tokens x heads] = K Q^T and, with their
// weights, out^T [dims x heads] += V^T [dims x tokens] weights. A lane's columns are the same in
// scores, weights' sums and out^T, so that rescaling takes no exchange between lanes.
//
// No row of keys or values is transposed or swizzled in shared memory. Which dimension is which k
// of the first product, and which token or dimension is which row of either, are free to choose;
// they are chosen so that a lane's operands are 16 contiguous bytes of a token:
// K: lane (g, t) = (lane / 4, lane % 4) reads dims [32 j + 8 t, + 8) of the tokens of rows g and
// g + 8 for the k steps 2 j and 2 j + 1; queries are read alike. V: lane (g, t) reads dims
// [64 u + 8 g, + 8) of the tokens of columns 2 t, 2 t + 1, 2 t + 8 and 2 t + 9 and pairs
// neighbouring tokens with byte permutes.
//
// A quarter of a warp (8 lanes: 2 g, 4 t) is served at once if it hits 8 different 16-byte groups
// of the 128-byte width of the banks. All tokens begin at the same bank but for the chunks of a
// stage, which lie 32 bytes further each. Rows 2 t are of chunk t and rows 2 t + 1 of chunk (t + 2)
// % 4: then K's two rows are 64 bytes apart and V's four rows 32 bytes, and no access conflicts.
// Codes of f8e4m3 lie alike, 8 bytes to a lane; then half a warp is served at once, whose rows of K
// conflict only at head_dim 64, two by two. They are made bf16, which is exact. A key's scale is
// multiplied into its scores, a value's into its weights before these are rounded to bf16.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/core/dtype.h"
#include "kernels/cuda/bf16.cuh"
#include "kernels/cuda/fp8.cuh"
#include "kernels/cuda/paged_attention_work.cuh"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/ptx_bf16.cuh"
#include "kernels/cuda/warp.cuh"

namespace baton::kernels::cuda::paged {

inline constexpr int32_t kChunks = kStageTokens / kChunkTokens;
inline constexpr int32_t kTileTokens = 16;
// Heads of a column tile: n of the matrix instruction.
inline constexpr int32_t kColumns = 8;

// A stage in shared memory: keys, then values, in chunks of 16 tokens, and of f8e4m3 tokens the
// scales of the keys, then of the values.
template <int kHeadDim, DType kDType = DType::kBF16>
struct StageLayout {
  static constexpr bool kHasScales = kDType == DType::kF8E4M3;
  static constexpr int32_t kElementBytes = kHasScales ? 1 : 2;
  static constexpr int32_t kPartBytes = 8 * kElementBytes;  // of a token, a lane's at a time
  static constexpr int32_t kRowBytes = kElementBytes * kHeadDim;
  static constexpr int32_t kChunkBytes = kChunkTokens * kRowBytes + 32;
  static constexpr int32_t kValues = kChunks * kChunkBytes;
  static constexpr int32_t kScales = 2 * kValues;
  static constexpr int32_t kBytes =
      kScales + (kHasScales ? 2 * kStageTokens * static_cast<int32_t>(sizeof(float)) : 0);
};

// Which token of the stage is row `row` (0 to 15) of the tile of `warp`: its chunk and its place in
// the chunk.
__device__ constexpr int32_t TileChunk(int32_t row) { return (row / 2 + 2 * (row % 2)) % kChunks; }
__device__ constexpr int32_t TilePlace(int32_t row, int32_t warp) {
  return kTileTokens / kChunks * warp + row % 2 + 2 * (row / 8);
}
__device__ constexpr int32_t TileToken(int32_t row, int32_t warp) {
  return TileChunk(row) * kChunkTokens + TilePlace(row, warp);
}
template <int kHeadDim, DType kDType = DType::kBF16>
__device__ constexpr int32_t TileOffset(int32_t row, int32_t warp) {
  using Layout = StageLayout<kHeadDim, kDType>;
  return TileChunk(row) * Layout::kChunkBytes + TilePlace(row, warp) * Layout::kRowBytes;
}

// Eight neighbouring elements of a token, in shared memory, as bf16.
template <DType kDType>
__device__ uint4 LoadPart(const std::byte* source) {
  if constexpr (kDType == DType::kF8E4M3) {
    return F8ToBf16(*reinterpret_cast<const uint2*>(source));
  } else {
    return *reinterpret_cast<const uint4*>(source);
  }
}

// The queries of an item as second operand of the first product, zeros for columns past the group.
template <int kHeadDim, int kColumnTiles>
struct Queries {
  uint4 parts[kColumnTiles][kHeadDim / 32];

  // `q` is [group, head_dim].
  __device__ void Load(const uint16_t* q, int32_t group) {
    for (int n = 0; n < kColumnTiles; ++n) {
      const int32_t head = kColumns * n + LaneGroup();
      for (int j = 0; j < kHeadDim / 32; ++j) {
        const uint16_t* part = q + head * kHeadDim + 32 * j + 8 * LaneInGroup();
        parts[n][j] = head < group ? *reinterpret_cast<const uint4*>(part) : make_uint4(0, 0, 0, 0);
      }
    }
  }
};

// Running attention of a lane: heads 8 n + 2 t + {0, 1} of column tile n.
template <int kHeadDim, int kColumnTiles>
struct Running {
  static constexpr int kRowTiles = kHeadDim / 16;

  // Of scores to base 2; the same in the lanes of a column.
  float max[kColumnTiles][2];
  // Of weights; this lane's share until SumAcrossGroups.
  float sum[kColumnTiles][2];
  // Weighted values. Element e of the lane's head_dim / 8 of one head is dim 64 (e / 8) + 8 g + e %
  // 8 (Value).
  float out[kColumnTiles][kRowTiles][4];

  __device__ void Clear() {
    for (int n = 0; n < kColumnTiles; ++n) {
      for (int c = 0; c < 2; ++c) {
        max[n][c] = -INFINITY;
        sum[n][c] = 0.0f;
      }
      for (int m = 0; m < kRowTiles; ++m) {
        for (int i = 0; i < 4; ++i) out[n][m][i] = 0.0f;
      }
    }
  }
  __device__ float Value(int n, int c, int e) const {
    return e < kRowTiles ? out[n][e][c] : out[n][e - kRowTiles][2 + c];
  }
};

// The keys that the row sees, of a stage that begins at token `position`.
struct StageKeys {
  int32_t position;
  int32_t first;
  int32_t end;

  __device__ bool all_seen() const { return position >= first && position + kStageTokens <= end; }
  __device__ bool Sees(int32_t token) const {
    return position + token >= first && position + token < end;
  }
};

// scores = K Q^T: [0] and [1] of the token of row g, [2] and [3] of row g + 8.
template <DType kDType = DType::kBF16, int kHeadDim, int kColumnTiles>
__device__ void Scores(const std::byte* keys,
                       int32_t warp,
                       const Queries<kHeadDim, kColumnTiles>& queries,
                       float (&scores)[kColumnTiles][4]) {
  using Layout = StageLayout<kHeadDim, kDType>;
  const std::byte* low_row =
      keys + TileOffset<kHeadDim, kDType>(LaneGroup(), warp) + Layout::kPartBytes * LaneInGroup();
  const std::byte* high_row = low_row + 2 * Layout::kRowBytes;
  float odd[kColumnTiles][4] = {};  // a second chain: half the latency
  for (int n = 0; n < kColumnTiles; ++n) {
    for (int i = 0; i < 4; ++i) scores[n][i] = 0.0f;
  }
#pragma unroll
  for (int j = 0; j < kHeadDim / 32; ++j) {
    const uint4 low = LoadPart<kDType>(low_row + 4 * Layout::kPartBytes * j);
    const uint4 high = LoadPart<kDType>(high_row + 4 * Layout::kPartBytes * j);
    const uint32_t even_keys[4] = {low.x, high.x, low.y, high.y};
    const uint32_t odd_keys[4] = {low.z, high.z, low.w, high.w};
#pragma unroll
    for (int n = 0; n < kColumnTiles; ++n) {
      const uint4 q = queries.parts[n][j];
      MultiplyAddBf16(scores[n], even_keys, {q.x, q.y});
      MultiplyAddBf16(odd[n], odd_keys, {q.z, q.w});
    }
  }
  for (int n = 0; n < kColumnTiles; ++n) {
    for (int i = 0; i < 4; ++i) scores[n][i] += odd[n][i];
  }
}

// Weights of the lane's scores, relative to the running maxima of its two columns.
struct ScoreWeights {
  float weight[4];
  float rescale[2];  // what was relative to the maxima before
};

// Takes the scores of column tile n, to base 2, into maxima and sums.
template <int kHeadDim, int kColumnTiles>
__device__ ScoreWeights WeighScores(const float (&scores)[4],
                                    int n,
                                    Running<kHeadDim, kColumnTiles>& running) {
  ScoreWeights of;
#pragma unroll
  for (int c = 0; c < 2; ++c) {
    const float tile_max = MaxAcrossGroups(fmaxf(scores[c], scores[2 + c]));
    const float largest = fmaxf(running.max[n][c], tile_max);
    of.rescale[c] = Exp2(running.max[n][c] - largest);
    of.weight[c] = Exp2(scores[c] - largest);
    of.weight[2 + c] = Exp2(scores[2 + c] - largest);
    running.max[n][c] = largest;
    running.sum[n][c] =
        __fmaf_rn(running.sum[n][c], of.rescale[c], of.weight[c] + of.weight[2 + c]);
  }
  if (__any_sync(kAllLanes, of.rescale[0] != 1.0f || of.rescale[1] != 1.0f)) {
#pragma unroll
    for (int m = 0; m < Running<kHeadDim, kColumnTiles>::kRowTiles; ++m) {
      for (int i = 0; i < 4; ++i) running.out[n][m][i] *= of.rescale[i % 2];
    }
  }
  return of;
}

// Multiplies by the scales of the lane's rows g and g + 8: of f8e4m3 tokens; others have none.
template <bool kHasScales>
struct TileScales {
  __device__ TileScales(const std::byte*, int32_t, bool, bool) {}
  __device__ float OfKeys(float factor, int) const { return factor; }
  __device__ float OfValues(float weight, int) const { return weight; }
};

// Zeros for tokens that the row does not see: what lies there may be no number.
template <>
struct TileScales<true> {
  float keys[2];
  float values[2];

  // `stage_scales` are those of StageLayout.
  __device__ TileScales(const std::byte* stage_scales,
                        int32_t warp,
                        bool low_seen,
                        bool high_seen) {
    const auto* scales = reinterpret_cast<const float*>(stage_scales);
    const int32_t low = TileToken(LaneGroup(), warp);
    const int32_t high = TileToken(LaneGroup() + 8, warp);
    keys[0] = low_seen ? scales[low] : 0.0f;
    keys[1] = high_seen ? scales[high] : 0.0f;
    values[0] = low_seen ? scales[kStageTokens + low] : 0.0f;
    values[1] = high_seen ? scales[kStageTokens + high] : 0.0f;
  }
  __device__ float OfKeys(float factor, int i) const { return factor * keys[i]; }
  __device__ float OfValues(float weight, int i) const { return weight * values[i]; }
};

// The weights of the tokens as second operand of the second product.
__device__ inline void PackWeights(const ScoreWeights& of, uint32_t (&weights)[2]) {
  weights[0] = Transpose8x8(PackBf16(of.weight[0], of.weight[1]));
  weights[1] = Transpose8x8(PackBf16(of.weight[2], of.weight[3]));
}

// The lane's dims of four tokens of V, word by word (2 dims): rows 2 t, 2 t + 1, 2 t + 8, 2 t + 9.
// Zeros for tokens that the row does not see: what lies there may be no number.
template <int kHeadDim, DType kDType>
__device__ void LoadValues(const std::byte* values,
                           int32_t warp,
                           const StageKeys& keys,
                           uint32_t (&words)[4][kHeadDim / 16]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int32_t row = 2 * LaneInGroup() + i % 2 + 8 * (i / 2);
    constexpr int32_t kPartBytes = StageLayout<kHeadDim, kDType>::kPartBytes;
    const std::byte* source =
        values + TileOffset<kHeadDim, kDType>(row, warp) + kPartBytes * LaneGroup();
    const bool seen = keys.all_seen() || keys.Sees(TileToken(row, warp));
#pragma unroll
    for (int u = 0; u < kHeadDim / 64; ++u) {
      const uint4 part = LoadPart<kDType>(source + 8 * kPartBytes * u);
      words[i][4 * u] = seen ? part.x : 0;
      words[i][4 * u + 1] = seen ? part.y : 0;
      words[i][4 * u + 2] = seen ? part.z : 0;
      words[i][4 * u + 3] = seen ? part.w : 0;
    }
  }
}

// out^T += V^T weights.
template <int kHeadDim, int kColumnTiles>
__device__ void AddValues(const uint32_t (&words)[4][kHeadDim / 16],
                          const uint32_t (&weights)[kColumnTiles][2],
                          Running<kHeadDim, kColumnTiles>& running) {
  constexpr int kHalf = kHeadDim / 32;  // words of rows 0 to 7, and of rows 8 to 15
#pragma unroll
  for (int w = 0; w < kHalf; ++w) {
    const uint32_t even[4] = {PairOfLow(words[0][w], words[1][w]),
                              PairOfLow(words[0][kHalf + w], words[1][kHalf + w]),
                              PairOfLow(words[2][w], words[3][w]),
                              PairOfLow(words[2][kHalf + w], words[3][kHalf + w])};
    const uint32_t odd[4] = {PairOfHigh(words[0][w], words[1][w]),
                             PairOfHigh(words[0][kHalf + w], words[1][kHalf + w]),
                             PairOfHigh(words[2][w], words[3][w]),
                             PairOfHigh(words[2][kHalf + w], words[3][kHalf + w])};
#pragma unroll
    for (int n = 0; n < kColumnTiles; ++n) {
      MultiplyAddBf16(running.out[n][2 * w], even, weights[n]);
      MultiplyAddBf16(running.out[n][2 * w + 1], odd, weights[n]);
    }
  }
}

// Attention over the tile of `warp` in `stage`. All lanes.
template <DType kDType = DType::kBF16, int kHeadDim, int kColumnTiles>
__device__ void FoldTile(const std::byte* stage,
                         int32_t warp,
                         const StageKeys& keys,
                         float score_scale,
                         const Queries<kHeadDim, kColumnTiles>& queries,
                         Running<kHeadDim, kColumnTiles>& running) {
  using Layout = StageLayout<kHeadDim, kDType>;
  const bool low_seen = keys.Sees(TileToken(LaneGroup(), warp));
  const bool high_seen = keys.Sees(TileToken(LaneGroup() + 8, warp));
  if (!__any_sync(kAllLanes, low_seen || high_seen)) {
    return;
  }
  float scores[kColumnTiles][4];
  Scores<kDType>(stage, warp, queries, scores);
  const TileScales<Layout::kHasScales> scales(stage + Layout::kScales, warp, low_seen, high_seen);
  uint32_t weights[kColumnTiles][2];
#pragma unroll
  for (int n = 0; n < kColumnTiles; ++n) {
    for (int i = 0; i < 4; ++i) {
      scores[n][i] = (i < 2 ? low_seen : high_seen)
                         ? scores[n][i] * scales.OfKeys(score_scale, i / 2)
                         : -INFINITY;
    }
    ScoreWeights of = WeighScores(scores[n], n, running);
    for (int i = 0; i < 4; ++i) of.weight[i] = scales.OfValues(of.weight[i], i / 2);
    PackWeights(of, weights[n]);
  }
  uint32_t words[4][kHeadDim / 16];
  LoadValues<kHeadDim, kDType>(stage + Layout::kValues, warp, keys, words);
  AddValues(words, weights, running);
}

}  // namespace baton::kernels::cuda::paged
