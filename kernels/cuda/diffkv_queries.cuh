// Queries of one KV head as operands of matrix instructions on bytes (docs/kernels/diffkv.md): a
// query is a unit times integers of 16 bits, whose upper and lower byte are two signed planes, so a
// product with key codes is exact in int32.
//
// The instructions have eight columns. Up to four query heads take two each, the planes side by
// side (`kPaired`), so that both sums of a head lie in one lane; up to eight take one each, and
// every instruction comes twice, once for each plane.
#pragma once

#include <cstdint>

#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/ptx_bf16.cuh"

namespace baton::kernels::cuda {

// Columns of a matrix instruction; query heads that a warp attends at once, at most.
inline constexpr int32_t kDiffKvColumns = 8;

// How planes lie over columns. A lane has heads lane % 4 x kHeads + {0, 1}.
template <bool kPaired>
struct DiffKvPlanes {
  static constexpr int kHeads = kPaired ? 1 : 2;     // of a lane's sums
  static constexpr int kOperands = kPaired ? 1 : 2;  // of one A operand

  __device__ static int Head(int own) { return threadIdx.x % 4 * kHeads + own; }
};

// Int32 sums of 16 rows and all columns, as D operands lie.
template <bool kPaired>
struct DiffKvPlaneSums {
  static constexpr int kOperands = DiffKvPlanes<kPaired>::kOperands;

  int32_t sums[kOperands][4] = {};

  // += a b; b: both planes, or the upper and the lower.
  __device__ void Add(const uint32_t (&a)[4], const uint32_t (&b)[kOperands][2]) {
#pragma unroll
    for (int i = 0; i < kOperands; ++i) MultiplyAddBytes(sums[i], a, b[i]);
  }
  // Of both planes: of row lane / 4 + 8 half, and of the lane's head `own`.
  __device__ int32_t Joined(int half, int own) const {
    if constexpr (kPaired) {
      return sums[0][2 * half] * 256 + sums[0][2 * half + 1];
    } else {
      return sums[0][2 * half + own] * 256 + sums[1][2 * half + own];
    }
  }
};

// Queries in shared memory, a lane's elements in order, and of every query head what 1 in a product
// with 8-bit keys counts in a score to base 2, and what in such products a key's zero counts.
template <int kDim, bool kPaired>
struct DiffKvQueries {
  static constexpr int kOperands = DiffKvPlanes<kPaired>::kOperands;
  static constexpr int kWords = kDim / 16;  // of a lane, of one plane

  uint4 b[kOperands][kWords / 4][32];
  float unit[kDiffKvColumns];
  float sum[kDiffKvColumns];
};

// The largest magnitude of the integers: both their bytes are signed.
inline constexpr float kDiffKvQuerySteps = 32639.0f;
// Queries beyond the one saturate; of heads without any beyond the other nothing is left.
inline constexpr float kDiffKvLargestQuery = 0x1p60f;
inline constexpr float kDiffKvSmallestQuery = 0x1p-60f;

// What a lane has of a query: kDim / 4 integers plus 128 in 16 bits, two a word, so that a lower
// byte is the lower plane plus 128; and of the whole query the unit and the sum of the integers.
template <int kDim>
struct DiffKvQueryShare {
  uint32_t pairs[kDim / 8];
  float unit;
  float sum;
};

// Elements 2 i and 2 i + 1 of a lane's share of a query, within what is represented.
template <int kDim>
__device__ inline float2 QueryPair(const uint4 (&own)[kDim / 32], int i) {
  const uint4& four = own[i / 4];
  const uint32_t pair = i % 4 == 0 ? four.x : i % 4 == 1 ? four.y : i % 4 == 2 ? four.z : four.w;
  return {fminf(fmaxf(LowBf16(pair), -kDiffKvLargestQuery), kDiffKvLargestQuery),
          fminf(fmaxf(HighBf16(pair), -kDiffKvLargestQuery), kDiffKvLargestQuery)};
}

// All lanes of a warp. `own`: the bf16 elements from lane % 4 x kDim / 4 on of the query that the
// lane shares with three others.
template <int kDim>
__device__ inline DiffKvQueryShare<kDim> RoundQueries(const uint4 (&own)[kDim / 32]) {
  float largest = kDiffKvSmallestQuery;
#pragma unroll
  for (int i = 0; i < kDim / 8; ++i) {
    const float2 x = QueryPair<kDim>(own, i);
    largest = fmaxf(largest, fmaxf(fabsf(x.x), fabsf(x.y)));
  }
#pragma unroll
  for (int step = 1; step < 4; step *= 2) {
    largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, step));
  }
  DiffKvQueryShare<kDim> share;
  share.unit = largest / kDiffKvQuerySteps;
  const float inverse = kDiffKvQuerySteps / largest;
  int32_t sum = 0;
#pragma unroll
  for (int i = 0; i < kDim / 8; ++i) {
    const float2 x = QueryPair<kDim>(own, i);
    const int32_t first = __float2int_rn(x.x * inverse);
    const int32_t second = __float2int_rn(x.y * inverse);
    sum += first + second;
    share.pairs[i] = PairOfLow(first + 128, second + 128);
  }
#pragma unroll
  for (int step = 1; step < 4; step *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
  share.sum = static_cast<float>(sum);
  return share;
}

// What products of keys count more than those of 8 bits: masks leave 4-bit codes of odd elements
// times 16, and sums of the even ones are made so, too.
constexpr float DiffKvKeyTimes(int key_bits) { return key_bits == 8 ? 1.0f : 16.0f; }

// All lanes of a warp: writes what they share of the queries, those of head lane / 4 (`kPaired`:
// lane / 8, once for each plane). `scale` makes products of queries and keys scores to base 2.
template <int kDim, bool kPaired>
__device__ inline void StoreQueries(const DiffKvQueryShare<kDim>& share,
                                    float scale,
                                    DiffKvQueries<kDim, kPaired>& out) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < out.kOperands; ++i) {
    const bool upper = kPaired ? lane / 4 % 2 == 0 : i == 0;
    const auto plane_word = [&](int word) {
      const uint32_t bytes =
          __byte_perm(share.pairs[2 * word], share.pairs[2 * word + 1], upper ? 0x7531 : 0x6420);
      return upper ? bytes : bytes ^ 0x80808080u;
    };
#pragma unroll
    for (int w = 0; w < out.kWords; w += 4) {
      out.b[i][w / 4][lane] = {
          plane_word(w), plane_word(w + 1), plane_word(w + 2), plane_word(w + 3)};
    }
  }
  constexpr int kLanes = kPaired ? 8 : 4;  // of a query
  if (lane % kLanes == 0) {
    out.unit[lane / kLanes] = share.unit * scale;
    out.sum[lane / kLanes] = share.sum;
  }
}

// A lane's operands of the queries: for keys of 8 bits its elements in order; for words of eight
// 4-bit codes first the even elements of every word, then the odd ones.
template <int kDim, int kKeyBits, bool kPaired>
__device__ inline void LoadOperands(const DiffKvQueries<kDim, kPaired>& queries,
                                    uint32_t (&b)[DiffKvPlanes<kPaired>::kOperands][kDim / 16]) {
#pragma unroll
  for (int i = 0; i < DiffKvPlanes<kPaired>::kOperands; ++i) {
    uint32_t words[kDim / 16];
#pragma unroll
    for (int w = 0; w < kDim / 64; ++w) {
      const uint4 loaded = queries.b[i][w][threadIdx.x % 32];
      words[4 * w] = loaded.x;
      words[4 * w + 1] = loaded.y;
      words[4 * w + 2] = loaded.z;
      words[4 * w + 3] = loaded.w;
    }
#pragma unroll
    for (int w = 0; w < kDim / 32; ++w) {
      if constexpr (kKeyBits == 8) {
        b[i][2 * w] = words[2 * w];
        b[i][2 * w + 1] = words[2 * w + 1];
      } else {
        b[i][w] = __byte_perm(words[2 * w], words[2 * w + 1], 0x6420);
        b[i][kDim / 32 + w] = __byte_perm(words[2 * w], words[2 * w + 1], 0x7531);
      }
    }
  }
}

}  // namespace baton::kernels::cuda
