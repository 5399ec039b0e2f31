// What one warp computes of attention over quantized pages: up to eight query heads of one KV head
// against the tokens of a page in shared memory, on matrix instructions (docs/kernels/diffkv.md).
//
// The instructions have eight columns for query heads. Up to four heads leave half of them free, so
// they are taken twice (`kPaired`): columns 0-3 see the first eight of every sixteen tokens,
// columns 4-7 the others, as two softmaxes of the same heads that are merged at the end. An
// instruction then multiplies half as many dims of twice as many tokens, and what follows it has no
// idle lanes.
//
// Codes become fp16 operands by bit operations alone: a code of up to 8 bits in the low bits of a
// half of exponent 2^10 is the number 1024 + code (one of `n` bits further up, 1024 + 2^n code).
// What the 1024 adds to a product is the same product with all codes 0, and is taken off again in
// fp32.
#pragma once

#include <cuda_fp16.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/ptx_bf16.cuh"
#include "kernels/kv_format/diffkv.h"

namespace baton::kernels::cuda {

// Query heads of a warp's matrix instructions: their columns.
inline constexpr int32_t kDiffKvColumns = 8;
// The maximum before any key: finite, so that differences stay defined.
inline constexpr float kDiffKvNoScore = -1e30f;

// The halves 1024 and 1024.
inline constexpr uint32_t kCodeBias = 0x64006400u;

// Queries in shared memory, for keys of one width: as B operands, column lane / 4 a query head, and
// of every column what the bias adds to a product, and the sum over the head's elements, times
// which a key's zero counts.
template <int kDim>
struct DiffKvQueries {
  uint4 b[kDim / 32][32];  // a lane's operands of two instructions
  float bias[kDiffKvColumns];
  float sum[kDiffKvColumns];
};

// One lane's share of a softmax: accumulators [dim][column] as D operands lie, and of the columns
// 2 (lane % 4) + {0, 1} the maximum, the same in all lanes of the column, and this lane's sums.
template <int kDim>
struct DiffKvSoftmax {
  float values[kDim / 16][4];
  float max[2];
  float weights[2];
  float zeros[2];  // of weight x a value's zero
};

template <int kDim>
__device__ inline void Reset(DiffKvSoftmax<kDim>& softmax) {
#pragma unroll
  for (int f = 0; f < kDim / 16; ++f) {
#pragma unroll
    for (int i = 0; i < 4; ++i) softmax.values[f][i] = 0.0f;
  }
#pragma unroll
  for (int c = 0; c < 2; ++c) {
    softmax.max[c] = kDiffKvNoScore;
    softmax.weights[c] = 0.0f;
    softmax.zeros[c] = 0.0f;
  }
}

// Two elements as halves; beyond the range of fp16 they saturate.
__device__ inline uint32_t PackHalves(float low, float high) {
  constexpr float kLargest = 65504.0f;
  const __half2 pair = __floats2half2_rn(fminf(fmaxf(low, -kLargest), kLargest),
                                         fminf(fmaxf(high, -kLargest), kLargest));
  return *reinterpret_cast<const uint32_t*>(&pair);
}

// Keys of 8 bits: the pairs of a word are the elements (0, 1) and (2, 3) of four. Keys of 4 bits: a
// word's mask takes the elements (n, n + 4) of eight; odd n lie 4 bits up, so their queries are a
// 16th.
// All lanes of a warp; `own` is what a lane has of its column's query head (zeros: there is none),
// the bf16 elements from lane % 4 x kDim / 4 on.
template <int kDim, int kKeyBits>
__device__ inline void PrepareQueries(const uint4 (&own)[kDim / 32], DiffKvQueries<kDim>& out) {
  const int lane = threadIdx.x % 32;
  float low[4] = {};
  float high[4] = {};
  constexpr uint32_t kOnes = 0x3c003c00u;
#pragma unroll
  for (int pair = 0; pair < kDim / 32; ++pair) {
    const uint32_t words[4] = {own[pair].x, own[pair].y, own[pair].z, own[pair].w};
    float x[8];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      x[2 * i] = LowBf16(words[i]);
      x[2 * i + 1] = HighBf16(words[i]);
    }
    uint32_t b[2][2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int n = 2 * half;
      if constexpr (kKeyBits == 8) {
        b[half][0] = PackHalves(x[2 * n], x[2 * n + 1]);
        b[half][1] = PackHalves(x[2 * n + 2], x[2 * n + 3]);
      } else {
        b[half][0] = PackHalves(x[n], x[n + 4]);
        b[half][1] = PackHalves(x[n + 1] / 16.0f, x[n + 5] / 16.0f);
      }
      MultiplyAdd(low, {kOnes, kOnes, 0, 0}, b[half]);
      MultiplyAdd(high, {0, 0, kOnes, kOnes}, b[half]);
    }
    out.b[pair][lane] = {b[0][0], b[0][1], b[1][0], b[1][1]};
  }
  if (lane < 4) {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      out.bias[2 * lane + c] = 1024.0f * (low[c] + high[c]);
      out.sum[2 * lane + c] = kKeyBits == 8 ? low[c] + high[c] : low[c] + 16.0f * high[c];
    }
  }
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

// How a page's tokens lie over D operands: fragments of one tile of 16 tokens, or of two
// (`kPaired`), and a lane's token of each half of a fragment (rows lane / 4 and + 8).
template <int kTokens, bool kPaired>
struct DiffKvFragments {
  static constexpr int kTiles = (kTokens + 15) / 16;
  static constexpr int kTilesOf = kPaired ? 2 : 1;
  static constexpr int kCount = (kTiles + kTilesOf - 1) / kTilesOf;
  // Whether some of the last fragment's tokens are none of the page.
  static constexpr bool kRagged = kTokens % (16 * kTilesOf) != 0;

  __device__ static int Token(int fragment, int half) {
    const int lane = threadIdx.x % 32;
    return kPaired ? 16 * (2 * fragment + half) + lane % 4 / 2 * 8 + lane / 4
                   : 16 * fragment + 8 * half + lane / 4;
  }
};

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
template <int kDim, int kKeyBits, int kTokens, bool kRagged>
struct DiffKvKeyCodes {
  static constexpr int kBytes = kDim / 4 * kKeyBits / 8 < 16 ? 8 : 16;
  static constexpr int kWords = kBytes / 4;
  static constexpr int kUnits = kDim / 4 * kKeyBits / 8 / kBytes;
  static constexpr int kPairs = 16 / kKeyBits;  // operands of a word

  // The unit of the token lane / 4 behind `first`; zero where no such token is in a page.
  __device__ static void Load(const std::byte* codes,
                              int first,
                              int unit,
                              uint32_t (&words)[kWords]) {
    const int lane = threadIdx.x % 32;
    if (!kRagged || first + 8 <= kTokens) {
      LoadWords(codes + ((unit * kTokens + first + lane / 4) * 4 + lane % 4) * kBytes, words);
    } else {
#pragma unroll
      for (int w = 0; w < kWords; ++w) words[w] = 0;
    }
  }
  // The `pair`-th operand of a word; PrepareQueries has the elements in this order.
  __device__ static uint32_t Operand(uint32_t word, int pair) {
    if constexpr (kKeyBits == 8) {
      return __byte_perm(word, kCodeBias, pair == 0 ? 0x7150 : 0x7352);
    } else {
      return AndOr(word >> (pair / 2 * 8), pair % 2 == 0 ? 0x000f000fu : 0x00f000f0u, kCodeBias);
    }
  }
};

// products[0] + products[1] += keys x queries of one fragment: two sums, since a sum waits for each
// instruction before the next.
template <int kDim, int kKeyBits, int kTokens, bool kPaired>
__device__ inline void MultiplyKeys(const std::byte* codes,
                                    int fragment,
                                    const uint32_t (&queries)[kDim / 8],
                                    float (&products)[2][4]) {
  using Codes = DiffKvKeyCodes<kDim, kKeyBits, kTokens, DiffKvFragments<kTokens, kPaired>::kRagged>;
  constexpr int kRows = kPaired ? 4 : 2;  // tokens of a lane
  const bool low_columns = threadIdx.x % 32 < 16;
#pragma unroll
  for (int unit = 0; unit < Codes::kUnits; ++unit) {
    uint32_t words[kRows][Codes::kWords];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      Codes::Load(codes, 8 * (kRows * fragment + r), unit, words[r]);
    }
#pragma unroll
    for (int w = 0; w < Codes::kWords; ++w) {
#pragma unroll
      for (int pair = 0; pair < Codes::kPairs; pair += kPaired ? 1 : 2) {
        const int operand = (unit * Codes::kWords + w) * Codes::kPairs + pair;
        if constexpr (kPaired) {
          const uint32_t q = queries[operand];
          MultiplyAdd(products[operand % 2],
                      {Codes::Operand(words[0][w], pair),
                       Codes::Operand(words[2][w], pair),
                       Codes::Operand(words[1][w], pair),
                       Codes::Operand(words[3][w], pair)},
                      {low_columns ? q : 0, low_columns ? 0 : q});
        } else {
          MultiplyAdd(products[operand / 2 % 2],
                      {Codes::Operand(words[0][w], pair),
                       Codes::Operand(words[1][w], pair),
                       Codes::Operand(words[0][w], pair + 1),
                       Codes::Operand(words[1][w], pair + 1)},
                      {queries[operand], queries[operand + 1]});
        }
      }
    }
  }
}

// The scale and zero of a vector of codes.
__device__ inline float2 LoadRange(const std::byte* ranges, int token) {
  return __half22float2(reinterpret_cast<const __half2*>(ranges)[token]);
}

// A lane's operands of the queries.
template <int kDim>
__device__ inline void LoadOperands(const DiffKvQueries<kDim>& queries, uint32_t (&b)[kDim / 8]) {
#pragma unroll
  for (int i = 0; i < kDim / 32; ++i) {
    const uint4 loaded = queries.b[i][threadIdx.x % 32];
    b[4 * i] = loaded.x;
    b[4 * i + 1] = loaded.y;
    b[4 * i + 2] = loaded.z;
    b[4 * i + 3] = loaded.w;
  }
}

// Products of keys and queries, before the scale of attention; -inf where nothing is seen.
template <int kDim, int kKeyBits, int kValueBits, bool kPaired, int kFragments>
__device__ inline void ScorePage(const DiffKvSharedPage& page,
                                 const DiffKvQueries<kDim>& queries,
                                 float (&scores)[kFragments][4]) {
  constexpr DiffKvPageLayout kLayout = {kDim, {kKeyBits, kValueBits}};
  constexpr int kTokens = kLayout.page_tokens();
  using Fragments = DiffKvFragments<kTokens, kPaired>;
  const int column = threadIdx.x % 4 * 2;
  const float2 bias = *reinterpret_cast<const float2*>(queries.bias + column);
  const float2 sum = *reinterpret_cast<const float2*>(queries.sum + column);
  const bool whole = !Fragments::kRagged && page.tokens == kTokens && page.positions == nullptr;
  uint32_t b[kDim / 8];
  LoadOperands(queries, b);
#pragma unroll
  for (int f = 0; f < kFragments; ++f) {
    float products[2][4] = {{-bias.x, -bias.y, -bias.x, -bias.y}, {}};
    MultiplyKeys<kDim, kKeyBits, kTokens, kPaired>(page.data + kLayout.key_codes(), f, b, products);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int token = Fragments::Token(f, half);
      const float2 range = LoadRange(page.data + kLayout.key_scales(), token);
      const float first = products[0][2 * half] + products[1][2 * half];
      const float second = products[0][2 * half + 1] + products[1][2 * half + 1];
      scores[f][2 * half] = __fmaf_rn(range.x, first, range.y * sum.x);
      scores[f][2 * half + 1] = __fmaf_rn(range.x, second, range.y * sum.y);
      if (!whole && !page.Sees(token)) {
        scores[f][2 * half] = -INFINITY;
        scores[f][2 * half + 1] = -INFINITY;
      }
    }
  }
}

// Raises the running maxima, which are of scores x scale, to the page's, and turns its scores into
// weights relative to them. factors[c]: what earlier weights count from now on.
template <int kDim, int kFragments>
__device__ inline void WeighPage(float scale,
                                 float (&scores)[kFragments][4],
                                 DiffKvSoftmax<kDim>& softmax,
                                 float (&factors)[2]) {
#pragma unroll
  for (int c = 0; c < 2; ++c) {
    float largest = -INFINITY;
#pragma unroll
    for (int f = 0; f < kFragments; ++f) {
      largest = fmaxf(largest, fmaxf(scores[f][c], scores[f][2 + c]));
    }
#pragma unroll
    for (int step = 4; step < 32; step *= 2) {
      largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, step));
    }
    const float max = fmaxf(softmax.max[c], largest * scale);
    factors[c] = Exp2(softmax.max[c] - max);
    softmax.max[c] = max;
    softmax.weights[c] *= factors[c];
    softmax.zeros[c] *= factors[c];
#pragma unroll
    for (int f = 0; f < kFragments; ++f) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float& score = scores[f][2 * half + c];
        score = Exp2(__fmaf_rn(score, scale, -max));
        softmax.weights[c] += score;
      }
    }
  }
}

// How value codes become A operands. A word holds the codes of the tokens 2 (lane % 4) + {0, 1}
// and, as other pairs, + {8, 9}, for 16 dims (32 for 2 bits), each pair's at the same bits of both
// halves. The operands of a fragment lie at different bits, so they are the codes times different
// powers of two; those of the columns (tokens) are made equal by the weights they meet, those of
// the rows (dims) in the sums.
template <int kBits>
struct DiffKvValueCodes;

template <>
struct DiffKvValueCodes<8> {
  // Of the pairs + {0, 1} and + {8, 9}.
  __device__ static constexpr float Weight(int /*pair*/) { return 1.0f; }
  // Of the rows lane / 4 and + 8.
  __device__ static constexpr float Dim(int /*row*/) { return 1.0f; }
};
template <>
struct DiffKvValueCodes<4> {
  __device__ static constexpr float Weight(int pair) { return pair == 0 ? 16.0f : 1.0f; }
  __device__ static constexpr float Dim(int /*row*/) { return 1.0f / 16.0f; }
  __device__ static void Fragments(uint32_t word, uint32_t (&a)[1][4]) {
    a[0][0] = AndOr(word, 0x000f000fu, kCodeBias);
    a[0][1] = AndOr(word >> 8, 0x000f000fu, kCodeBias);
    a[0][2] = AndOr(word, 0x00f000f0u, kCodeBias);
    a[0][3] = AndOr(word >> 8, 0x00f000f0u, kCodeBias);
  }
};
template <>
struct DiffKvValueCodes<2> {
  __device__ static constexpr float Weight(int pair) { return pair == 0 ? 4.0f : 1.0f; }
  __device__ static constexpr float Dim(int row) { return row == 0 ? 1.0f / 4.0f : 1.0f / 64.0f; }
  __device__ static void Fragments(uint32_t word, uint32_t (&a)[2][4]) {
#pragma unroll
    for (int f = 0; f < 2; ++f) {
      const uint32_t x = word >> (8 * f);
      a[f][0] = AndOr(x, 0x00030003u, kCodeBias);
      a[f][1] = AndOr(x, 0x00300030u, kCodeBias);
      a[f][2] = AndOr(x, 0x000c000cu, kCodeBias);
      a[f][3] = AndOr(x, 0x00c000c0u, kCodeBias);
    }
  }
};

// Values are summed up in parts of 64 dims, so that few accumulators are in use at a time.
inline constexpr int32_t kDiffKvPartDims = 64;
inline constexpr int32_t kDiffKvPartFragments = kDiffKvPartDims / 16;

// sums += values of 16 tokens x weights in one part: tiles of 16 tokens, values of 4 and 2 bits.
template <int kDim, int kBits>
__device__ inline void MultiplyValues(const std::byte* codes,
                                      int tile,
                                      int part,
                                      const uint32_t (&weights)[2],
                                      float (&sums)[kDiffKvPartFragments][4]) {
  constexpr DiffKvPageLayout kLayout = {kDim, {4, kBits}};
  constexpr int kLaneWords = kLayout.value_lane_words();
  constexpr int kFragments = kBits == 2 ? 2 : 1;             // of a word
  constexpr int kWords = kDiffKvPartFragments / kFragments;  // of a part
  constexpr int kTileParts = kLaneWords / kWords;
  const int lane = threadIdx.x % 32;
  const int dim_tile = tile * (kDim / kLayout.value_tile_dims()) + part / kTileParts;
  uint32_t words[kWords];
  LoadWords(codes + ((dim_tile * 32 + lane) * kLaneWords + part % kTileParts * kWords) * 4, words);
#pragma unroll
  for (int w = 0; w < kWords; ++w) {
    uint32_t a[kFragments][4];
    DiffKvValueCodes<kBits>::Fragments(words[w], a);
#pragma unroll
    for (int f = 0; f < kFragments; ++f) {
      MultiplyAdd(sums[w * kFragments + f], a[f], weights);
    }
  }
}

// The same for values of 8 bits, whose tiles have 8 tokens; the last tile of a page of 24 tokens is
// alone.
template <int kDim, int kTokens>
__device__ inline void MultiplyByteValues(const std::byte* codes,
                                          int tile,
                                          int part,
                                          const uint32_t (&weights)[2],
                                          float (&sums)[kDiffKvPartFragments][4]) {
  const int lane = threadIdx.x % 32;
  uint32_t words[2][4] = {};
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (16 * tile + 8 * half < kTokens) {
      const int dim_tile = (2 * tile + half) * (kDim / kDiffKvPartDims) + part;
      LoadWords(codes + (dim_tile * 32 + lane) * 16, words[half]);
    }
  }
#pragma unroll
  for (int w = 0; w < 4; ++w) {
    MultiplyAdd(sums[w],
                {__byte_perm(words[0][w], kCodeBias, 0x7250),
                 __byte_perm(words[0][w], kCodeBias, 0x7351),
                 __byte_perm(words[1][w], kCodeBias, 0x7250),
                 __byte_perm(words[1][w], kCodeBias, 0x7351)},
                weights);
  }
}

// A value's scale as weights meet it, within fp16: beyond 65504 it saturates.
template <int kBits>
__device__ inline float WeightScale(float scale, int pair) {
  return fminf(scale * DiffKvValueCodes<kBits>::Weight(pair), 65504.0f);
}
__device__ inline uint32_t PackWeights(float low, float high) {
  const __half2 pair = __floats2half2_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

// The weights of a page as B operands, tile by tile; adds what the values' zeros count.
template <int kDim, int kKeyBits, int kValueBits, bool kPaired, int kFragments, int kTiles>
__device__ inline void PrepareWeights(const DiffKvSharedPage& page,
                                      const float (&weights)[kFragments][4],
                                      DiffKvSoftmax<kDim>& softmax,
                                      uint32_t (&b)[kTiles][2]) {
  constexpr DiffKvPageLayout kLayout = {kDim, {kKeyBits, kValueBits}};
  using Fragments = DiffKvFragments<kLayout.page_tokens(), kPaired>;
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int f = 0; f < kFragments; ++f) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int tile = kPaired ? 2 * f + half : f;
      if (tile >= kTiles) continue;
      const float low = weights[f][2 * half];
      const float high = weights[f][2 * half + 1];
      const float2 range = LoadRange(page.data + kLayout.value_scales(), Fragments::Token(f, half));
      softmax.zeros[0] = __fmaf_rn(low, range.y, softmax.zeros[0]);
      softmax.zeros[1] = __fmaf_rn(high, range.y, softmax.zeros[1]);
      const float scale = WeightScale<kValueBits>(range.x, kPaired ? lane % 4 / 2 : half);
      const uint32_t operand = Transpose8x8(PackWeights(low * scale, high * scale));
      if constexpr (kPaired) {
        b[tile][0] = lane < 16 ? operand : 0;
        b[tile][1] = lane < 16 ? 0 : operand;
      } else {
        b[tile][half] = operand;
      }
    }
  }
}

// values = values x factors + the page's values x weights.
template <int kDim, int kKeyBits, int kValueBits, bool kPaired, int kFragments>
__device__ inline void AddValues(const DiffKvSharedPage& page,
                                 const float (&weights)[kFragments][4],
                                 const float (&factors)[2],
                                 DiffKvSoftmax<kDim>& softmax) {
  constexpr DiffKvPageLayout kLayout = {kDim, {kKeyBits, kValueBits}};
  constexpr int kTiles = DiffKvFragments<kLayout.page_tokens(), kPaired>::kTiles;
  const std::byte* codes = page.data + kLayout.value_codes();
  uint32_t b[kTiles][2];
  PrepareWeights<kDim, kKeyBits, kValueBits, kPaired>(page, weights, softmax, b);
  float bias[4] = {};
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
    MultiplyAdd(bias, {kCodeBias, kCodeBias, kCodeBias, kCodeBias}, b[tile]);
  }
#pragma unroll
  for (int part = 0; part < kDim / kDiffKvPartDims; ++part) {
    float sums[kDiffKvPartFragments][4] = {};
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      if constexpr (kValueBits == 8) {
        MultiplyByteValues<kDim, kLayout.page_tokens()>(codes, tile, part, b[tile], sums);
      } else {
        MultiplyValues<kDim, kValueBits>(codes, tile, part, b[tile], sums);
      }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float dim = DiffKvValueCodes<kValueBits>::Dim(i / 2);
      const float bias_value = -bias[i] * dim;
#pragma unroll
      for (int f = 0; f < kDiffKvPartFragments; ++f) {
        float& value = softmax.values[part * kDiffKvPartFragments + f][i];
        value = __fmaf_rn(sums[f][i], dim, __fmaf_rn(value, factors[i % 2], bias_value));
      }
    }
  }
}

}  // namespace baton::kernels::cuda
