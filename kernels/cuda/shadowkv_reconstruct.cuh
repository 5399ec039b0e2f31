// Reconstruction of selected keys: coefficients, gathered by token, times a head's columns of the
// basis, plus the bias, rotated and rounded to bf16, to the slots that the plan gave the chunks.
//
// A block takes 128 tokens of a KV head's misses and all of the head's dimensions: at rank 160 and
// head_dim 128 it reads 40 KiB of each operand for 5.2 Mflop. The product goes over slices of 32
// columns of the coefficients, which copies bring to a ring in shared memory while the warps
// compute. A warp has 32 tokens and a quarter of the dimensions of each half of the key, so that
// the two elements which RoPE rotates together are in one lane.
//
// A coefficient of int8 times its scale has more bits than bf16: it is the sum of two numbers, and
// a slice of such coefficients has 16 columns twice, which meet the same rows of the basis.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/core/half.h"
#include "kernels/cuda/paged_attention_tile.cuh"
#include "kernels/cuda/ptx_bf16.cuh"
#include "kernels/cuda/ptx_tile.cuh"
#include "kernels/cuda/shadowkv_angles.cuh"
#include "kernels/cuda/shadowkv_plan.cuh"
#include "kernels/cuda/warp.cuh"
#include "kernels/ops/shadowkv_params.h"

namespace baton::kernels::cuda::shadowkv {

inline constexpr int32_t kKeyTile = 128;  // tokens of a block
inline constexpr int32_t kKeyThreads = 256;
inline constexpr int32_t kKeyBlocks = 2;  // of a multiprocessor
inline constexpr int32_t kSlice = 32;     // columns of coefficients
inline constexpr int32_t kSlices = 4;     // of the ring

// Elements between rows in shared memory: 16 bytes more than they have, so that the eight rows of a
// matrix lie in different banks.
inline constexpr int32_t kCoefficientStride = kSlice + 8;
template <int kHeadDim>
inline constexpr int32_t kBasisStride = kHeadDim + 8;

template <int kHeadDim>
struct KeySlice {
  uint16_t coefficients[kKeyTile][kCoefficientStride];
  uint16_t basis[kSlice][kBasisStride<kHeadDim>];
};

// A token of the tile.
struct KeyToken {
  const std::byte* coefficients;
  const uint16_t* scales;  // of int8 coefficients
  uint16_t* key;           // null: there is no such token
  int32_t position;
};

template <int kHeadDim>
struct alignas(128) KeyShared {
  union {
    KeySlice<kHeadDim> slices[kSlices];
    uint16_t keys[kKeyTile][kBasisStride<kHeadDim>];  // rotated, on their way out
  };
  KeyToken tokens[kKeyTile];
  HeadPlan plan;
};

// Looks up the tile's tokens, from token `begin` of the misses on. A thread each.
template <int kHeadDim>
__device__ void FindKeyTokens(const int2* misses, int32_t begin, KeyShared<kHeadDim>& shared) {
  const HeadPlan& plan = shared.plan;
  if (threadIdx.x >= kKeyTile) return;
  const int32_t index = begin + static_cast<int32_t>(threadIdx.x);
  const int32_t miss = index >> plan.chunks.token_shift;
  KeyToken token = {};
  if (miss < plan.misses) {
    const int32_t in_chunk = index & (plan.chunks.tokens() - 1);
    const int2 chunk_slot = misses[miss];
    const int32_t row_bytes = plan.rank * (plan.int8_coefficients ? 1 : 2);
    token.coefficients = plan.coefficients.Chunk(plan.chunks, chunk_slot.x) + in_chunk * row_bytes;
    token.scales =
        reinterpret_cast<const uint16_t*>(plan.coefficient_scales.Group(plan.chunks, chunk_slot.x));
    token.position = (chunk_slot.x << plan.chunks.token_shift) + in_chunk;
    const int64_t row = (int64_t{chunk_slot.y} << plan.chunks.token_shift) + in_chunk;
    token.key = reinterpret_cast<uint16_t*>(plan.keys) + row * kHeadDim;
  }
  shared.tokens[threadIdx.x] = token;
}

// Columns of the coefficients in a slice.
__device__ inline int32_t SliceColumns(const HeadPlan& plan) {
  return plan.int8_coefficients ? kSlice / 2 : kSlice;
}

// Brings the columns [first, first + kSlice) of the tokens' coefficients of bf16, zeros behind the
// rank and for absent tokens. All threads.
template <int kHeadDim>
__device__ void LoadCoefficients(const KeyShared<kHeadDim>& shared,
                                 int32_t first,
                                 KeySlice<kHeadDim>& slice) {
  constexpr int32_t kParts = kSlice / 8;
  const HeadPlan& plan = shared.plan;
  const bool aligned = plan.rank % 8 == 0;
#pragma unroll
  for (int32_t i = threadIdx.x; i < kKeyTile * kParts; i += kKeyThreads) {
    const KeyToken& token = shared.tokens[i / kParts];
    const int32_t column = first + i % kParts * 8;
    uint16_t* target = &slice.coefficients[i / kParts][i % kParts * 8];
    const int32_t count = token.key == nullptr ? 0 : max(0, min(8, plan.rank - column));
    if (aligned) {
      const std::byte* source = count > 0 ? token.coefficients + column * 2 : plan.basis;
      CopyAsync16(target, source, count > 0 ? 16 : 0);
      continue;
    }
    const auto* source = reinterpret_cast<const uint16_t*>(token.coefficients) + column;
    uint32_t words[4] = {};
#pragma unroll
    for (int32_t e = 0; e < 8; ++e) {
      if (e < count) words[e / 2] |= uint32_t{source[e]} << (e % 2 * 16);
    }
    *reinterpret_cast<uint4*>(target) = make_uint4(words[0], words[1], words[2], words[3]);
  }
}

// Eight coefficients of int8, of which `count` exist, from a token's column `column` on.
__device__ inline void LoadEightCodes(
    const KeyToken& token, int32_t column, int32_t count, bool aligned, float (&x)[8]) {
  const auto* codes = reinterpret_cast<const int8_t*>(token.coefficients) + column;
  const uint16_t* scales = token.scales + column;
  if (aligned && count > 0) {
    const uint2 code_words = *reinterpret_cast<const uint2*>(codes);
    const uint4 scale_words = *reinterpret_cast<const uint4*>(scales);
    const uint32_t pairs[4] = {scale_words.x, scale_words.y, scale_words.z, scale_words.w};
#pragma unroll
    for (int32_t e = 0; e < 8; ++e) {
      const uint32_t code = (e < 4 ? code_words.x : code_words.y) >> (e % 4 * 8);
      const uint32_t scale = pairs[e / 2] >> (e % 2 * 16);
      x[e] = static_cast<float>(static_cast<int8_t>(code & 0xffu)) *
             F16ToF32(static_cast<uint16_t>(scale & 0xffffu));
    }
    return;
  }
#pragma unroll
  for (int32_t e = 0; e < 8; ++e) {
    x[e] = e < count ? static_cast<float>(codes[e]) * F16ToF32(scales[e]) : 0.0f;
  }
}

// Brings the columns [first, first + kSlice / 2) of the tokens' coefficients of int8: rounded to
// bf16, and behind them what that leaves. All threads.
template <int kHeadDim>
__device__ void LoadCodedCoefficients(const KeyShared<kHeadDim>& shared,
                                      int32_t first,
                                      KeySlice<kHeadDim>& slice) {
  constexpr int32_t kParts = kSlice / 2 / 8;
  const HeadPlan& plan = shared.plan;
#pragma unroll
  for (int32_t i = threadIdx.x; i < kKeyTile * kParts; i += kKeyThreads) {
    const KeyToken& token = shared.tokens[i / kParts];
    const int32_t column = first + i % kParts * 8;
    const int32_t count = token.key == nullptr ? 0 : max(0, min(8, plan.rank - column));
    float x[8];
    LoadEightCodes(token, column, count, plan.rank % 8 == 0, x);
    uint32_t rounded[4];
    uint32_t rest[4];
#pragma unroll
    for (int32_t e = 0; e < 4; ++e) {
      rounded[e] = PackBf16(x[2 * e], x[2 * e + 1]);
      rest[e] = RestBf16(x[2 * e], x[2 * e + 1], rounded[e]);
    }
    uint16_t* row = slice.coefficients[i / kParts];
    *reinterpret_cast<uint4*>(row + i % kParts * 8) =
        make_uint4(rounded[0], rounded[1], rounded[2], rounded[3]);
    *reinterpret_cast<uint4*>(row + kSlice / 2 + i % kParts * 8) =
        make_uint4(rest[0], rest[1], rest[2], rest[3]);
  }
}

// Brings `rows` rows of the head's basis from `first` on, zeros behind the rank. All threads.
template <int kHeadDim>
__device__ void LoadBasis(const HeadPlan& plan,
                          int32_t first,
                          int32_t rows,
                          KeySlice<kHeadDim>& slice) {
  constexpr int32_t kParts = kHeadDim / 8;
#pragma unroll 2
  for (int32_t i = threadIdx.x; i < rows * kParts; i += kKeyThreads) {
    const int32_t row = first + i / kParts;
    const bool exists = row < plan.rank;
    const std::byte* source = plan.basis + (exists ? row : 0) * plan.basis_bytes + i % kParts * 16;
    CopyAsync16(&slice.basis[i / kParts][i % kParts * 8], source, exists ? 16 : 0);
  }
}

// Starts to bring a slice, if there is one; a group of copies in any case.
template <int kHeadDim>
__device__ void BeginSlice(int32_t slice, KeyShared<kHeadDim>& shared) {
  const HeadPlan& plan = shared.plan;
  const int32_t columns = SliceColumns(plan);
  const int32_t first = slice * columns;
  KeySlice<kHeadDim>& target = shared.slices[slice % kSlices];
  if (first < plan.rank) {
    LoadBasis(plan, first, columns, target);
    if (plan.int8_coefficients) {
      LoadCodedCoefficients(shared, first, target);
    } else {
      LoadCoefficients(shared, first, target);
    }
  }
  CommitCopies();
}

// A warp's products: of two tiles of 16 tokens, in both halves of the key, kHeadDim / 32 tiles of 8
// dimensions.
template <int kHeadDim>
struct KeyProducts {
  static constexpr int kTiles = kHeadDim / 32;
  float sums[2][2][kTiles][4] = {};
};
// The warp's first token of the tile, and its first dimension of each half.
__device__ inline int32_t WarpToken() {
  return static_cast<int32_t>(threadIdx.x / kWarpLanes % 4) * 32;
}
template <int kHeadDim>
__device__ int32_t WarpDim() {
  return static_cast<int32_t>(threadIdx.x / kWarpLanes / 4) * (kHeadDim / 4);
}

// products += coefficients x basis, of 16 columns of a slice from `k` on and as many rows of the
// basis. Each warp.
template <int kHeadDim>
__device__ void MultiplyStep(const KeySlice<kHeadDim>& slice,
                             int32_t k,
                             int32_t basis_row,
                             KeyProducts<kHeadDim>& products) {
  const auto lane = static_cast<int32_t>(threadIdx.x % kWarpLanes);
  const int32_t row = lane % 16;         // of two matrices one below the other
  const int32_t column = lane / 16 * 8;  // of two such pairs side by side
  uint32_t a[2][4];
#pragma unroll
  for (int m = 0; m < 2; ++m) {
    LoadMatrices(&slice.coefficients[WarpToken() + 16 * m + row][k + column], a[m]);
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int32_t dim = half * (kHeadDim / 2) + WarpDim<kHeadDim>();
#pragma unroll
    for (int n = 0; n < KeyProducts<kHeadDim>::kTiles; n += 2) {
      uint32_t b[4];
      LoadTransposed(&slice.basis[basis_row + row][dim + 8 * n + column], b);
#pragma unroll
      for (int m = 0; m < 2; ++m) {
        MultiplyAddBf16(products.sums[m][half][n], a[m], {b[0], b[1]});
        MultiplyAddBf16(products.sums[m][half][n + 1], a[m], {b[2], b[3]});
      }
    }
  }
}

// Keys of the tile before RoPE, less the bias. All threads.
template <int kHeadDim>
__device__ void MultiplyKeys(KeyShared<kHeadDim>& shared, KeyProducts<kHeadDim>& products) {
  const int32_t columns = SliceColumns(shared.plan);
  const int32_t slices = (shared.plan.rank + columns - 1) / columns;
  for (int32_t slice = 0; slice < kSlices - 1; ++slice) BeginSlice(slice, shared);
  for (int32_t slice = 0; slice < slices; ++slice) {
    WaitForCopies<kSlices - 2>();
    __syncthreads();  // the slice is there, and all have left the one before
    BeginSlice(slice + kSlices - 1, shared);
    __syncwarp();
#pragma unroll
    for (int32_t k = 0; k < kSlice; k += 16) {
      MultiplyStep(shared.slices[slice % kSlices], k, columns == kSlice ? k : 0, products);
    }
  }
  __syncthreads();
}

// The angles of a position's dimensions dim and dim + 1.
__device__ inline KeyAngles AnglesAt(const ShadowKvRope& rope,
                                     int64_t position,
                                     int32_t half_dim,
                                     int32_t dim) {
  const int64_t at = position * half_dim + dim;
  return {rope.cosines + at, rope.sines + at};
}

// Adds the bias, [head_dim] or null, rotates and rounds: to KeyShared::keys. Each warp, after all
// have left the slices. A token's angles are those of its chunk's first token, which the chunk's
// lanes read together, and those of its place in the chunk, which is the same in all of a lane's
// tokens: chunks of up to eight tokens lie in eight rows.
template <int kHeadDim>
__device__ void RotateKeys(const ShadowKvRope& rope,
                           const float* bias,
                           const KeyProducts<kHeadDim>& products,
                           KeyShared<kHeadDim>& shared) {
  constexpr int32_t kHalf = kHeadDim / 2;
  const int32_t in_chunk = LaneGroup() & (shared.plan.chunks.tokens() - 1);
#pragma unroll
  for (int n = 0; n < KeyProducts<kHeadDim>::kTiles; ++n) {
    const int32_t dim = WarpDim<kHeadDim>() + 8 * n + 2 * LaneInGroup();
    const float2 none = make_float2(0.0f, 0.0f);
    const float2 low_bias = bias == nullptr ? none : make_float2(bias[dim], bias[dim + 1]);
    const float2 high_bias =
        bias == nullptr ? none : make_float2(bias[dim + kHalf], bias[dim + kHalf + 1]);
    const KeyAngles in_chunk_angles = AnglesAt(rope, in_chunk, kHalf, dim);
#pragma unroll
    for (int i = 0; i < 4; ++i) {  // tokens of the warp, 8 apart
      const int32_t row = WarpToken() + 8 * i + LaneGroup();
      KeyAngles angles = AnglesAt(rope, max(shared.tokens[row].position - in_chunk, 0), kHalf, dim);
      angles.Add(in_chunk_angles);
      const float(&low)[4] = products.sums[i / 2][0][n];
      const float(&high)[4] = products.sums[i / 2][1][n];
      const float2 x = {low[i % 2 * 2] + low_bias.x, low[i % 2 * 2 + 1] + low_bias.y};
      const float2 y = {high[i % 2 * 2] + high_bias.x, high[i % 2 * 2 + 1] + high_bias.y};
      RotatePair(x,
                 y,
                 angles,
                 *reinterpret_cast<uint32_t*>(&shared.keys[row][dim]),
                 *reinterpret_cast<uint32_t*>(&shared.keys[row][dim + kHalf]));
    }
  }
}

// Writes the tile's keys to their slots. All threads, after all have rotated theirs.
template <int kHeadDim>
__device__ void StoreKeys(const KeyShared<kHeadDim>& shared) {
  constexpr int32_t kParts = kHeadDim / 8;
#pragma unroll 4
  for (int32_t i = threadIdx.x; i < kKeyTile * kParts; i += kKeyThreads) {
    const int32_t part = i % kParts * 8;
    uint16_t* target = shared.tokens[i / kParts].key;
    if (target == nullptr) continue;
    *reinterpret_cast<uint4*>(target + part) =
        *reinterpret_cast<const uint4*>(&shared.keys[i / kParts][part]);
  }
}

}  // namespace baton::kernels::cuda::shadowkv
