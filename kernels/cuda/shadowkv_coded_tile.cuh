// Attention of one warp over one tile of a stage whose values are all in codes of 4 bits, as
// paged_attention_tile.cuh has it for values in bf16.
//
// A code becomes an operand by bit operations alone: in the mantissa of 128 it is the bf16 number
// 128 + code. A value is scale code + zero, so with the weights w of the tokens
//   sum w value = sum (w scale)(128 + code) + sum (w (zero + 8 scale) - 136 w scale),
// where the first sum is a product of matrices, with w scale rounded to bf16, and the second, the
// same for all dimensions, is kept in fp32. It takes the rounded products too: the 136 leaves of
// them what is multiplied by code - 8, which is no more than values are from their middle.
#pragma once

#include <cuda_fp16.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/paged_attention_tile.cuh"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/ptx_bf16.cuh"
#include "kernels/cuda/warp.cuh"

namespace baton::kernels::cuda::shadowkv {

// What is to be added to all dimensions of a lane's columns, relative to their maxima; the lane's
// share until AddTo.
template <int kColumnTiles>
struct CodedShift {
  float sums[kColumnTiles][2] = {};

  template <int kHeadDim>
  __device__ void AddTo(paged::Running<kHeadDim, kColumnTiles>& running) {
#pragma unroll
    for (int n = 0; n < kColumnTiles; ++n) {
      const float all[2] = {SumAcrossGroups(sums[n][0]), SumAcrossGroups(sums[n][1])};
#pragma unroll
      for (int m = 0; m < kHeadDim / 16; ++m) {
        for (int i = 0; i < 4; ++i) running.out[n][m][i] += all[i % 2];
      }
    }
    *this = {};
  }
};

// Scales the weights of column tile n by those of their tokens, the lane's rows, and takes the rest
// of the tokens' values into the shift. `products` get the scaled weights as second operand.
template <int kColumnTiles>
__device__ inline void ScaleWeights(const paged::ScoreWeights& of,
                                    float2 low_range,
                                    float2 high_range,
                                    int n,
                                    CodedShift<kColumnTiles>& shift,
                                    uint32_t (&products)[2]) {
  const uint32_t low = PackBf16(of.weight[0] * low_range.x, of.weight[1] * low_range.x);
  const uint32_t high = PackBf16(of.weight[2] * high_range.x, of.weight[3] * high_range.x);
  const float low_middle = __fmaf_rn(8.0f, low_range.x, low_range.y);
  const float high_middle = __fmaf_rn(8.0f, high_range.x, high_range.y);
  const float rounded[2] = {LowBf16(low) + LowBf16(high), HighBf16(low) + HighBf16(high)};
#pragma unroll
  for (int c = 0; c < 2; ++c) {
    const float middles = __fmaf_rn(of.weight[c], low_middle, of.weight[2 + c] * high_middle);
    const float rest = __fmaf_rn(-136.0f, rounded[c], middles);
    shift.sums[n][c] = __fmaf_rn(shift.sums[n][c], of.rescale[c], rest);
  }
  products[0] = Transpose8x8(low);
  products[1] = Transpose8x8(high);
}

// out^T += (128 + codes)^T products. A row of codes begins where the row of its value would.
template <int kHeadDim, int kColumnTiles>
__device__ void AddCodes(const std::byte* values,
                         int32_t warp,
                         const uint32_t (&products)[kColumnTiles][2],
                         paged::Running<kHeadDim, kColumnTiles>& running) {
  constexpr int kHalves = kHeadDim / 64;  // words of a token, of eight dimensions each
  constexpr int kTiles = kHeadDim / 16;
  uint32_t words[4][kHalves];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int32_t row = 2 * LaneInGroup() + i % 2 + 8 * (i / 2);
    const std::byte* source = values + paged::TileOffset<kHeadDim>(row, warp);
#pragma unroll
    for (int u = 0; u < kHalves; ++u) {
      words[i][u] = *reinterpret_cast<const uint32_t*>(source + 32 * u + 4 * LaneGroup());
    }
  }
  // Pairs of the dimensions 2 k and 2 k + 1 of neighbouring tokens, as AddValues pairs them: rows 0
  // to 7 of an operand are of one word (of head_dim 64: of its first two bytes), rows 8 to 15 of
  // another.
  constexpr uint32_t kMask = 0x000f000fu;
  constexpr uint32_t kOne = 0x43004300u;  // 128, twice
#pragma unroll
  for (int w = 0; w < kTiles / 2; ++w) {
    uint32_t even[4];
    uint32_t odd[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int half = i % 2;  // of the operand's rows
      const int word = kHalves == 2 ? half : 0;
      const int byte = kHalves == 2 ? w : 2 * half + w;
      const uint32_t select = static_cast<uint32_t>(byte) * 0x1111u + 0x4400u;
      const uint32_t pair = __byte_perm(words[i / 2 * 2][word], words[i / 2 * 2 + 1][word], select);
      even[i] = AndOr(pair, kMask, kOne);
      odd[i] = AndOr(pair >> 4, kMask, kOne);
    }
#pragma unroll
    for (int n = 0; n < kColumnTiles; ++n) {
      MultiplyAddBf16(running.out[n][2 * w], even, products[n]);
      MultiplyAddBf16(running.out[n][2 * w + 1], odd, products[n]);
    }
  }
}

// Attention over the tile of `warp` in `stage`; `ranges` are the fp16 scales and zeros of the
// stage's tokens. All lanes.
template <int kHeadDim, int kColumnTiles>
__device__ void FoldCodedTile(const std::byte* stage,
                              const uint32_t* ranges,
                              int32_t warp,
                              const paged::StageKeys& keys,
                              float score_scale,
                              const paged::Queries<kHeadDim, kColumnTiles>& queries,
                              CodedShift<kColumnTiles>& shift,
                              paged::Running<kHeadDim, kColumnTiles>& running) {
  const int32_t tokens[2] = {paged::TileToken(LaneGroup(), warp),
                             paged::TileToken(LaneGroup() + 8, warp)};
  const bool seen[2] = {keys.Sees(tokens[0]), keys.Sees(tokens[1])};
  if (!__any_sync(kAllLanes, seen[0] || seen[1])) return;
  float2 range[2];
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    const uint32_t pair = seen[row] ? ranges[tokens[row]] : 0;
    range[row] = __half22float2(*reinterpret_cast<const __half2*>(&pair));
  }
  float scores[kColumnTiles][4];
  paged::Scores(stage, warp, queries, scores);
  uint32_t products[kColumnTiles][2];
#pragma unroll
  for (int n = 0; n < kColumnTiles; ++n) {
    for (int i = 0; i < 4; ++i) {
      scores[n][i] = seen[i / 2] ? scores[n][i] * score_scale : -INFINITY;
    }
    const paged::ScoreWeights weights = paged::WeighScores(scores[n], n, running);
    ScaleWeights(weights, range[0], range[1], n, shift, products[n]);
  }
  AddCodes(stage + paged::StageLayout<kHeadDim>::kValues, warp, products, running);
}

}  // namespace baton::kernels::cuda::shadowkv
