// What one warp computes of attention over quantized pages: up to eight query heads of one KV head
// against the tokens of a page in shared memory, on matrix instructions (docs/kernels/diffkv.md).
//
// Codes become operands by masks alone: for keys, of instructions on bytes, whose int32 sums are
// exact; for values, of instructions on fp16, in which a code of up to 10 bits is the number code x
// 2^-24, since halves below 2^-14 have no exponent. Sums of values stay in fp32 over all pages:
// weights are relative to a reference that is seldom raised.
#pragma once

#include <cuda_fp16.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/diffkv_queries.cuh"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/warp.cuh"
#include "kernels/kv_format/diffkv.h"

namespace baton::kernels::cuda {

// The reference before any key: finite, so that differences stay defined.
inline constexpr float kDiffKvNoScore = -1e30f;
// To base 2: a reference is raised when a score is this far above it, and to as much below the
// largest. So weights are up to 64, and the largest, times a value's scale of up to 1023, and those
// that are 2^-14 of it, are within what fp16 holds in full.
inline constexpr float kDiffKvHeadroom = 6.0f;
inline constexpr float kDiffKvBelowLargest = 2.0f;

// One lane's share of a softmax: accumulators [dim][column] as D operands lie, in which
// DiffKvValueUnit counts, and of its heads the reference, the same in all lanes of the head, and
// this lane's sums.
template <int kDim, bool kPaired>
struct DiffKvSoftmax {
  static constexpr int kHeads = DiffKvPlanes<kPaired>::kHeads;

  float values[kDim / 16][4];
  float max[kHeads];
  float weights[kHeads];
  float zeros[kHeads];  // of weight x a value's zero
};

template <int kDim, bool kPaired>
__device__ inline void Reset(DiffKvSoftmax<kDim, kPaired>& softmax) {
  softmax = {};
  for (float& max : softmax.max) max = kDiffKvNoScore;
}

// A page in shared memory, and what of it counts.
struct DiffKvSharedPage {
  const std::byte* data;
  int32_t tokens;
  // Positions, in global memory, and the first that the query sees; null: it sees all.
  const int32_t* positions;
  int32_t oldest;

  __device__ bool Sees(int32_t token) const {
    return token < tokens && (positions == nullptr || positions[token] >= oldest);
  }
};

// Tiles of 16 tokens: the rows of a key instruction, the columns of a value instruction.
constexpr int DiffKvTiles(int tokens) { return (tokens + 15) / 16; }
// A lane's token of each half of a tile.
__device__ inline int DiffKvToken(int tile, int half) {
  return 16 * tile + 8 * half + static_cast<int>(threadIdx.x) % 32 / 4;
}

// Of a page and a lane's heads: scores, then weights.
template <int kTiles, bool kPaired>
using DiffKvScores = float[kTiles][2][DiffKvPlanes<kPaired>::kHeads];

// One lane's words.
template <int kWords>
__device__ inline void LoadWords(const std::byte* at, uint32_t (&words)[kWords]) {
  if constexpr (kWords == 4) {
    const uint4 loaded = *reinterpret_cast<const uint4*>(at);
    words[0] = loaded.x;
    words[1] = loaded.y;
    words[2] = loaded.z;
    words[3] = loaded.w;
  } else {
    const uint2 loaded = *reinterpret_cast<const uint2*>(at);
    words[0] = loaded.x;
    words[1] = loaded.y;
  }
}

// Key codes: a lane has for a token units of 16 (or 8) bytes, each some words.
template <int kDim, int kKeyBits, int kTokens>
struct DiffKvKeyCodes {
  static constexpr int kBytes = kDim / 4 * kKeyBits / 8 < 16 ? 8 : 16;
  static constexpr int kWords = kBytes / 4;
  static constexpr int kUnits = kDim / 4 * kKeyBits / 8 / kBytes;

  // A unit of a lane's token; zero where no page has such a token.
  __device__ static void Load(
      const std::byte* codes, int tile, int half, int unit, uint32_t (&words)[kWords]) {
    if (16 * tile + 8 * half < kTokens) {
      const int lane = threadIdx.x % 32;
      LoadWords(codes + ((unit * kTokens + DiffKvToken(tile, half)) * 4 + lane % 4) * kBytes,
                words);
    } else {
#pragma unroll
      for (uint32_t& word : words) word = 0;
    }
  }
};

// products[half][head]: keys x queries of one tile, of 4-bit keys 16 times that.
template <int kDim, int kKeyBits, int kTokens, bool kPaired>
__device__ inline void MultiplyKeys(
    const std::byte* codes,
    int tile,
    const uint32_t (&queries)[DiffKvPlanes<kPaired>::kOperands][kDim / 16],
    int32_t (&products)[2][DiffKvPlanes<kPaired>::kHeads]) {
  using Codes = DiffKvKeyCodes<kDim, kKeyBits, kTokens>;
  constexpr int kOperands = DiffKvPlanes<kPaired>::kOperands;
  DiffKvPlaneSums<kPaired> even;  // of 8-bit keys: all
  DiffKvPlaneSums<kPaired> odd;
#pragma unroll
  for (int unit = 0; unit < Codes::kUnits; ++unit) {
    uint32_t rows[2][Codes::kWords];
    Codes::Load(codes, tile, 0, unit, rows[0]);
    Codes::Load(codes, tile, 1, unit, rows[1]);
#pragma unroll
    for (int w = 0; w < Codes::kWords; w += 2) {
      const int first = unit * Codes::kWords + w;
      const uint32_t a[4] = {rows[0][w], rows[1][w], rows[0][w + 1], rows[1][w + 1]};
      uint32_t b[2][kOperands][2];
#pragma unroll
      for (int i = 0; i < kOperands; ++i) {
#pragma unroll
        for (int word = 0; word < 2; ++word) {
          b[0][i][word] = queries[i][first + word];
          if constexpr (kKeyBits == 4) b[1][i][word] = queries[i][kDim / 32 + first + word];
        }
      }
      if constexpr (kKeyBits == 8) {
        even.Add(a, b[0]);
      } else {
        constexpr uint32_t kLow = 0x0f0f0f0fu;
        even.Add({a[0] & kLow, a[1] & kLow, a[2] & kLow, a[3] & kLow}, b[0]);
        odd.Add({a[0] & ~kLow, a[1] & ~kLow, a[2] & ~kLow, a[3] & ~kLow}, b[1]);
      }
    }
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int c = 0; c < DiffKvPlanes<kPaired>::kHeads; ++c) {
      products[half][c] =
          kKeyBits == 8 ? even.Joined(half, c) : even.Joined(half, c) * 16 + odd.Joined(half, c);
    }
  }
}

// The scale and zero of a vector of codes.
__device__ inline float2 LoadRange(const std::byte* ranges, int token) {
  return __half22float2(reinterpret_cast<const __half2*>(ranges)[token]);
}

// Products of keys and queries in units of the queries' heads; -inf where nothing is seen.
template <int kDim, int kKeyBits, int kValueBits, bool kPaired, int kTiles>
__device__ inline void ScorePage(const DiffKvSharedPage& page,
                                 const DiffKvQueries<kDim, kPaired>& queries,
                                 DiffKvScores<kTiles, kPaired>& scores) {
  using Planes = DiffKvPlanes<kPaired>;
  constexpr DiffKvPageLayout kLayout = {kDim, {kKeyBits, kValueBits}};
  constexpr int kTokens = kLayout.page_tokens();
  float sum[Planes::kHeads];
#pragma unroll
  for (int c = 0; c < Planes::kHeads; ++c) {
    sum[c] = queries.sum[Planes::Head(c)] * DiffKvKeyTimes(kKeyBits);
  }
  uint32_t b[Planes::kOperands][kDim / 16];
  LoadOperands<kDim, kKeyBits>(queries, b);
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
    int32_t products[2][Planes::kHeads];
    MultiplyKeys<kDim, kKeyBits, kTokens, kPaired>(
        page.data + kLayout.key_codes(), tile, b, products);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float2 range = LoadRange(page.data + kLayout.key_scales(), DiffKvToken(tile, half));
#pragma unroll
      for (int c = 0; c < Planes::kHeads; ++c) {
        scores[tile][half][c] =
            __fmaf_rn(range.x, static_cast<float>(products[half][c]), range.y * sum[c]);
      }
    }
  }
  if (kTokens % 16 == 0 && page.tokens == kTokens && page.positions == nullptr) return;
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (page.Sees(DiffKvToken(tile, half))) continue;
#pragma unroll
      for (float& score : scores[tile][half]) score = -INFINITY;
    }
  }
}

// Raises references for the page's largest scores, of which a lane knows those of its own tokens,
// and makes what there is relative to them.
template <int kDim, bool kPaired, int kHeads>
__device__ inline void RaiseReferences(const float (&largest)[kHeads],
                                       DiffKvSoftmax<kDim, kPaired>& softmax) {
  float factors[kHeads];
#pragma unroll
  for (int c = 0; c < kHeads; ++c) {
    const float max = fmaxf(softmax.max[c], MaxAcrossGroups(largest[c]) - kDiffKvBelowLargest);
    factors[c] = Exp2(softmax.max[c] - max);
    softmax.max[c] = max;
    softmax.weights[c] *= factors[c];
    softmax.zeros[c] *= factors[c];
  }
#pragma unroll
  for (int f = 0; f < kDim / 16; ++f) {
#pragma unroll
    for (int i = 0; i < 4; ++i) softmax.values[f][i] *= factors[i % kHeads];
  }
}

// Turns a page's scores into weights relative to the references; unit[c]: what 1 in a score counts
// to base 2.
template <int kDim, bool kPaired, int kTiles>
__device__ inline void WeighPage(const float (&unit)[DiffKvPlanes<kPaired>::kHeads],
                                 DiffKvScores<kTiles, kPaired>& scores,
                                 DiffKvSoftmax<kDim, kPaired>& softmax) {
  constexpr int kHeads = DiffKvPlanes<kPaired>::kHeads;
  float largest[kHeads];
  bool beyond = false;
#pragma unroll
  for (int c = 0; c < kHeads; ++c) {
    largest[c] = -INFINITY;
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      largest[c] = fmaxf(largest[c], fmaxf(scores[tile][0][c], scores[tile][1][c]));
    }
    largest[c] *= unit[c];
    beyond |= largest[c] > softmax.max[c] + kDiffKvHeadroom;
  }
  if (__any_sync(0xffffffffu, beyond)) RaiseReferences(largest, softmax);
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int c = 0; c < kHeads; ++c) {
        float& score = scores[tile][half][c];
        score = Exp2(__fmaf_rn(score, unit[c], -softmax.max[c]));
        softmax.weights[c] += score;
      }
    }
  }
}

// What 1 in an accumulator of the rows lane / 4 + 8 half of values counts.
__device__ constexpr float DiffKvValueUnit(int half) { return half == 0 ? 0x1p24f : 0x1p20f; }

// How value codes become A operands. A word holds the codes of the tokens 2 (lane % 4) + {0, 1}
// and, as other pairs, + {8, 9}, for 16 dims (32 for 2 bits), each pair's at the same bits of both
// halves. Masks leave the codes times different powers of two: those of the columns (tokens) are
// made equal by the weights they meet, those of the rows (dims) are the same for all widths.
template <int kBits>
struct DiffKvValueCodes;

template <>
struct DiffKvValueCodes<8> {
  // What weights of the pairs + {0, 1} and + {8, 9} are taken times.
  __device__ static constexpr float Weight(int /*half*/) { return 1.0f; }
  // The operand of the words of both halves of a tile.
  __device__ static void Operand(uint32_t first, uint32_t second, uint32_t (&a)[4]) {
    a[0] = first & 0x00ff00ffu;
    a[1] = Times16(first >> 8 & 0x00ff00ffu);
    a[2] = second & 0x00ff00ffu;
    a[3] = Times16(second >> 8 & 0x00ff00ffu);
  }
  // Of two halves.
  __device__ static uint32_t Times16(uint32_t x) {
    const __half2 times = __hmul2(*reinterpret_cast<const __half2*>(&x), __float2half2_rn(16.0f));
    return *reinterpret_cast<const uint32_t*>(&times);
  }
};
template <>
struct DiffKvValueCodes<4> {
  __device__ static constexpr float Weight(int /*half*/) { return 1.0f; }
  // Of a word: one operand.
  __device__ static void Operands(uint32_t word, uint32_t (&a)[1][4]) {
    a[0][0] = word & 0x000f000fu;
    a[0][1] = word >> 4 & 0x00f000f0u;
    a[0][2] = word >> 4 & 0x000f000fu;
    a[0][3] = word >> 8 & 0x00f000f0u;
  }
};
template <>
struct DiffKvValueCodes<2> {
  __device__ static constexpr float Weight(int half) { return half == 0 ? 1.0f : 1.0f / 4.0f; }
  // Of a word: two operands.
  __device__ static void Operands(uint32_t word, uint32_t (&a)[2][4]) {
#pragma unroll
    for (int f = 0; f < 2; ++f) {
      const uint32_t x = word >> (8 * f);
      a[f][0] = x & 0x00030003u;
      a[f][1] = x & 0x00300030u;
      a[f][2] = x & 0x000c000cu;
      a[f][3] = x & 0x00c000c0u;
    }
  }
};

// values += values of a tile x weights, values of 4 and 2 bits.
template <int kDim, int kBits>
__device__ inline void MultiplyValues(const std::byte* codes,
                                      int tile,
                                      const uint32_t (&weights)[2],
                                      float (&values)[kDim / 16][4]) {
  constexpr DiffKvPageLayout kLayout = {kDim, {kBits == 2 ? 4 : 8, kBits}};
  constexpr int kWords = kLayout.value_lane_words();
  constexpr int kDimTiles = kDim / kLayout.value_tile_dims();
  constexpr int kOperands = kBits == 2 ? 2 : 1;  // of a word
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int dim_tile = 0; dim_tile < kDimTiles; ++dim_tile) {
    uint32_t words[kWords];
    LoadWords(codes + ((tile * kDimTiles + dim_tile) * 32 + lane) * kWords * 4, words);
#pragma unroll
    for (int w = 0; w < kWords; ++w) {
      uint32_t a[kOperands][4];
      DiffKvValueCodes<kBits>::Operands(words[w], a);
#pragma unroll
      for (int f = 0; f < kOperands; ++f) {
        MultiplyAdd(values[(dim_tile * kWords + w) * kOperands + f], a[f], weights);
      }
    }
  }
}

// The same for values of 8 bits, whose tiles have 8 tokens; the last one of a page of 24 tokens is
// alone.
template <int kDim, int kTokens>
__device__ inline void MultiplyByteValues(const std::byte* codes,
                                          int tile,
                                          const uint32_t (&weights)[2],
                                          float (&values)[kDim / 16][4]) {
  constexpr int kDimTiles = kDim / DiffKvPageLayout{kDim, {8, 8}}.value_tile_dims();
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int dim_tile = 0; dim_tile < kDimTiles; ++dim_tile) {
    uint32_t words[2][4] = {};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (16 * tile + 8 * half < kTokens) {
        LoadWords(codes + (((2 * tile + half) * kDimTiles + dim_tile) * 32 + lane) * 16,
                  words[half]);
      }
    }
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      uint32_t a[4];
      DiffKvValueCodes<8>::Operand(words[0][w], words[1][w], a);
      MultiplyAdd(values[dim_tile * 4 + w], a, weights);
    }
  }
}

// A tile's weights, with the values' scales in them, as B operands. With two columns for a head
// each has the tokens of one half: a column's zeros are where the other's weights are.
template <bool kPaired, int kHeads>
__device__ inline void PackWeights(const float (&weights)[2][kHeads], uint32_t (&b)[2]) {
  if constexpr (kPaired) {
    const uint32_t operand = Transpose8x8(PackHalves(weights[0][0], weights[1][0]));
    const bool first = threadIdx.x % 8 < 4;
    b[0] = first ? operand : 0;
    b[1] = first ? 0 : operand;
  } else {
    b[0] = Transpose8x8(PackHalves(weights[0][0], weights[0][1]));
    b[1] = Transpose8x8(PackHalves(weights[1][0], weights[1][1]));
  }
}

// Adds a page's values x weights.
template <int kDim, int kKeyBits, int kValueBits, bool kPaired, int kTiles>
__device__ inline void AddValues(const DiffKvSharedPage& page,
                                 const DiffKvScores<kTiles, kPaired>& weights,
                                 DiffKvSoftmax<kDim, kPaired>& softmax) {
  constexpr DiffKvPageLayout kLayout = {kDim, {kKeyBits, kValueBits}};
  constexpr int kHeads = DiffKvPlanes<kPaired>::kHeads;
  const std::byte* codes = page.data + kLayout.value_codes();
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
    float scaled[2][kHeads];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float2 range = LoadRange(page.data + kLayout.value_scales(), DiffKvToken(tile, half));
#pragma unroll
      for (int c = 0; c < kHeads; ++c) {
        const float weight = weights[tile][half][c];
        softmax.zeros[c] = __fmaf_rn(weight, range.y, softmax.zeros[c]);
        scaled[half][c] = weight * (range.x * DiffKvValueCodes<kValueBits>::Weight(half));
      }
    }
    uint32_t b[2];
    PackWeights<kPaired>(scaled, b);
    if constexpr (kValueBits == 8) {
      MultiplyByteValues<kDim, kLayout.page_tokens()>(codes, tile, b, softmax.values);
    } else {
      MultiplyValues<kDim, kValueBits>(codes, tile, b, softmax.values);
    }
  }
}

}  // namespace baton::kernels::cuda
