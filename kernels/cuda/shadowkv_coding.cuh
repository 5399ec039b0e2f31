// Codes keys and values of tokens for selection and attention: landmarks, deviations, outlier
// scores, 2-bit keys, values. Codes, landmarks and deviations have the bits of every other back
// end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>

#include "kernels/core/dtype.h"
#include "kernels/cuda/diffkv_token.cuh"
#include "kernels/cuda/ptx_bf16.cuh"
#include "kernels/cuda/shadowkv_keys.cuh"
#include "kernels/kv_format/quantize.h"
#include "kernels/kv_format/shadowkv.h"
#include "kernels/kv_format/shadowkv_codec.h"

namespace baton::kernels::cuda::shadowkv {

// Tokens that a group of lanes codes: whole chunks.
inline constexpr int32_t kUnitTokens = 8;

// Lanes of a group: each has eight elements of a vector, the last ones maybe none. A power of two
// up to a warp, so heads have up to 256 elements.
inline constexpr int32_t kMaxHeadDim = 256;
constexpr int32_t VectorLanes(int32_t head_dim) {
  int32_t lanes = 1;
  while (8 * lanes < head_dim) lanes *= 2;
  return lanes;
}

// Where coded tokens go.
struct CodedTarget {
  const ShadowKvConfig* config = nullptr;
  const ShadowKvCodedLayout* layout = nullptr;
  std::byte* section = nullptr;
  std::byte* value_section = nullptr;  // what layout->values counts from: section, or values apart
  // [kv_heads][layout->chunks], where scores are asked for: smallest cosine of a chunk's mean key
  // and its keys; that of a zero vector counts as 0.
  float* chunk_scores = nullptr;
};

// A lane's share of up to kUnitTokens consecutive tokens of a head.
struct CodingUnit {
  int32_t head = 0;
  int32_t first = 0;   // token of the section, a multiple of kUnitTokens
  int32_t tokens = 0;  // whole chunks; 0: nothing to do
  int32_t lanes = 0;
  int32_t lane = 0;  // in its group

  // Unit `index` of a head, 0 tokens past the last one.
  __device__ CodingUnit(const CodedTarget& target, int32_t head_index, int64_t index)
      : head(head_index), lanes(VectorLanes(target.config->head_dim)) {
    lane = static_cast<int32_t>(threadIdx.x) % lanes;
    const int64_t begin = index * kUnitTokens;
    if (begin < target.layout->tokens) {
      first = static_cast<int32_t>(begin);
      tokens = static_cast<int32_t>(min(int64_t{kUnitTokens}, target.layout->tokens - begin));
    }
  }
  __device__ int64_t Vector(const CodedTarget& target, int32_t token) const {
    return head * target.layout->tokens + first + token;
  }
  __device__ bool has_elements(const CodedTarget& target) const {
    return 8 * lane < target.config->head_dim;
  }
};

// Each of the numbers over a group of lanes.
template <int kCount>
__device__ inline void SumOverGroup(double (&x)[kCount], int32_t lanes) {
#pragma unroll 1
  for (int32_t step = 1; step < lanes; step *= 2) {
    for (double& each : x) each += __shfl_xor_sync(kAllLanes, each, step);
  }
}

// Eight codes of two bits, a byte each, packed, the first lowest.
__device__ inline uint16_t PackPairs(uint2 bytes) {
  uint32_t bits = PackNibbles(bytes);
  bits = (bits | (bits >> 2)) & 0x0f0f0f0fu;
  bits = (bits | (bits >> 4)) & 0x00ff00ffu;
  return static_cast<uint16_t>(bits | (bits >> 8));
}

// Quantizes vector `vector` of the section that starts at `codes`, with its scale and zero in
// `scales`. All lanes of the warp call it; `stores` says whether there is such a vector.
__device__ inline void CodeVector(const CodedTarget& target,
                                  const CodingUnit& unit,
                                  const float (&x)[8],
                                  int32_t bits,
                                  std::byte* codes,
                                  std::byte* scales,
                                  int64_t vector,
                                  bool stores) {
  float low = x[0];
  float high = x[0];
#pragma unroll
  for (int i = 1; i < 8; ++i) {
    low = fminf(low, x[i]);
    high = fmaxf(high, x[i]);
  }
  if (!unit.has_elements(target)) {
    low = std::numeric_limits<float>::infinity();
    high = -low;
  }
  for (int32_t step = 1; step < unit.lanes; step *= 2) {
    low = fminf(low, __shfl_xor_sync(kAllLanes, low, step));
    high = fmaxf(high, __shfl_xor_sync(kAllLanes, high, step));
  }
  if (!stores || !unit.has_elements(target)) return;
  const QuantRange range = FitRange(low, high, bits);
  const uint2 bytes = QuantizeEight(x, range, bits);
  std::byte* at =
      codes + static_cast<size_t>(vector) * target.config->code_bytes(bits) + unit.lane * bits;
  if (bits == 8) {
    *reinterpret_cast<uint2*>(at) = bytes;
  } else if (bits == 4) {
    *reinterpret_cast<uint32_t*>(at) = PackNibbles(bytes);
  } else {
    *reinterpret_cast<uint16_t*>(at) = PackPairs(bytes);
  }
  if (unit.lane == 0) {
    reinterpret_cast<uint32_t*>(scales)[vector] = range.scale | uint32_t{range.zero} << 16;
  }
}

// The lane's elements of kCount vectors, in registers. What codes a chunk takes any such object,
// whose kUnroll is that of a loop over its vectors.
template <int kCount>
struct HeldVectors {
  static constexpr int kUnroll = kCount;
  const float (*held)[8];

  __device__ void operator()(int32_t t, float (&x)[8]) const {
#pragma unroll
    for (int i = 0; i < 8; ++i) x[i] = held[t][i];
  }
};

// A chunk's mean, summed in the order of its keys.
template <int kChunk, typename Vectors>
__device__ inline void FindMean(const Vectors& keys, float (&mean)[8]) {
  // To which any number is added without a change, zeros of both signs too.
#pragma unroll
  for (int i = 0; i < 8; ++i) mean[i] = -0.0f;
#pragma unroll(Vectors::kUnroll)
  for (int t = 0; t < kChunk; ++t) {
    float key[8];
    keys(t, key);
#pragma unroll
    for (int i = 0; i < 8; ++i) mean[i] += key[i];
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) mean[i] /= static_cast<float>(kChunk);
}

// The largest distance of a chunk's keys from its mean as stored, as stored.
template <int kChunk, typename Vectors>
__device__ inline void FindDeviations(const Vectors& keys,
                                      const float (&mean)[8],
                                      DType dtype,
                                      float (&deviations)[8]) {
  const bool wide = dtype == DType::kF32;
#pragma unroll
  for (float& deviation : deviations) deviation = 0.0f;
#pragma unroll(Vectors::kUnroll)
  for (int t = 0; t < kChunk; ++t) {
    float key[8];
    keys(t, key);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float stored = wide ? mean[i] : LowBf16(PackBf16(mean[i], 0.0f));
      deviations[i] = fmaxf(deviations[i], fabsf(key[i] - stored));
    }
  }
  if (wide) return;
#pragma unroll
  for (float& deviation : deviations) deviation = LowBf16(BF16AtLeast(deviation));
}

// That of two vectors from their product and squares; 0 where one is zero.
__device__ inline float Cosine(double dot, double square, double other_square) {
  const bool lengths = square > 0.0 && other_square > 0.0;
  return static_cast<float>(lengths ? dot / sqrt(square * other_square) : 0.0);
}

// The smallest cosine between a chunk's mean and its keys. All lanes of the warp call it. Where a
// group has a lane for each key, each takes one root and one quotient.
template <int kChunk, typename Vectors>
__device__ inline float SmallestCosine(const Vectors& keys,
                                       const float (&mean)[8],
                                       const CodingUnit& unit) {
  double mean_square[1] = {};
#pragma unroll
  for (const float x : mean) mean_square[0] = fma(double{x}, double{x}, mean_square[0]);
  SumOverGroup(mean_square, unit.lanes);
  const bool lane_each = unit.lanes >= kChunk;
  double own[2] = {};
  float smallest = 2.0f;
#pragma unroll(Vectors::kUnroll)
  for (int t = 0; t < kChunk; ++t) {
    float key[8];
    keys(t, key);
    double sums[2] = {};  // the product with the mean, the square
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      sums[0] = fma(double{mean[i]}, double{key[i]}, sums[0]);
      sums[1] = fma(double{key[i]}, double{key[i]}, sums[1]);
    }
    SumOverGroup(sums, unit.lanes);
    if (!lane_each) {
      smallest = fminf(smallest, Cosine(sums[0], sums[1], mean_square[0]));
    } else if (unit.lane == t) {
      own[0] = sums[0];
      own[1] = sums[1];
    }
  }
  if (!lane_each) return smallest;
  if (unit.lane < kChunk) smallest = Cosine(own[0], own[1], mean_square[0]);
#pragma unroll 1
  for (int32_t step = 1; step < unit.lanes; step *= 2) {
    smallest = fminf(smallest, __shfl_xor_sync(kAllLanes, smallest, step));
  }
  return smallest;
}

// Landmark, deviations and, where kScores, score of the chunk at `token` of the unit, from its
// keys. All lanes of the warp call it.
template <int kChunk, bool kScores, typename Vectors>
__device__ inline void CodeChunk(const CodedTarget& target,
                                 const CodingUnit& unit,
                                 const Vectors& keys,
                                 int32_t token) {
  const ShadowKvConfig& config = *target.config;
  const int64_t chunk = unit.head * target.layout->chunks + (unit.first + token) / kChunk;
  const bool exists = token < unit.tokens;
  float mean[8];
  FindMean<kChunk>(keys, mean);
  if constexpr (kScores) {
    const float score = SmallestCosine<kChunk>(keys, mean, unit);
    if (exists && unit.lane == 0) target.chunk_scores[chunk] = score;
  }
  if (config.quantized_landmarks()) {
    std::byte* section = target.section;
    CodeVector(target,
               unit,
               mean,
               config.landmark_bits,
               section + target.layout->landmarks,
               section + target.layout->landmark_scales,
               chunk,
               exists);
    return;
  }
  if (config.selector == ShadowKvSelector::kQ2 || !exists || !unit.has_elements(target)) return;
  const size_t at = static_cast<size_t>(chunk) * config.vector_bytes() +
                    static_cast<size_t>(unit.lane) * 8 * DTypeBytes(config.dtype);
  StoreEight(mean, config.dtype, target.section + target.layout->landmarks + at);
  if (config.selector == ShadowKvSelector::kBounds) {
    float deviations[8];
    FindDeviations<kChunk>(keys, mean, config.dtype, deviations);
    StoreEight(deviations, config.dtype, target.section + target.layout->deviations + at);
  }
}

// Loads the lane's elements of kCount vectors of the unit from `token` on, of vectors_of(token of
// the section); zeros where there are none. All reads are on their way before one is waited for.
template <DType kDType, int kCount, typename VectorsOf>
__device__ inline void LoadVectors(const CodedTarget& target,
                                   const CodingUnit& unit,
                                   const VectorsOf& vectors_of,
                                   int32_t token,
                                   float (&x)[kCount][8]) {
#pragma unroll
  for (int t = 0; t < kCount; ++t) {
#pragma unroll
    for (int i = 0; i < 8; ++i) x[t][i] = 0.0f;
    if (token + t < unit.tokens && unit.has_elements(target)) {
      const HeadVectors vectors = vectors_of(unit.first + token + t);
      LoadElements(vectors.head(unit.head), kDType, 8 * unit.lane, x[t]);
    }
  }
}

// fn.operator()<dtype>() for the configuration's dtype.
template <typename Function>
__device__ inline void WithDType(const CodedTarget& target, const Function& fn) {
  if (target.config->dtype == DType::kF32) {
    fn.template operator()<DType::kF32>();
  } else {
    fn.template operator()<DType::kBF16>();
  }
}

// A unit's chunks without scores, of `tokens` that count from the section's first. All lanes of the
// warp call it.
template <int kChunk, typename Tokens>
__device__ inline void CodeChunks(const CodedTarget& target,
                                  const CodingUnit& unit,
                                  const Tokens& tokens) {
  const auto keys_of = [&](int32_t token) { return tokens.Keys(token); };
#pragma unroll 1
  for (int t = 0; t < kUnitTokens; t += kChunk) {
    float keys[kChunk][8];
    WithDType(target, [&]<DType kDType>() { LoadVectors<kDType>(target, unit, keys_of, t, keys); });
    CodeChunk<kChunk, false>(target, unit, HeldVectors<kChunk>{keys}, t);
  }
}

// Stores the lane's part of a value as it is.
__device__ inline void StoreValue(const CodedTarget& target,
                                  const CodingUnit& unit,
                                  const float (&x)[8],
                                  int32_t token) {
  const ShadowKvConfig& config = *target.config;
  if (token >= unit.tokens || !unit.has_elements(target)) return;
  const size_t at = static_cast<size_t>(unit.Vector(target, token)) * config.vector_bytes() +
                    static_cast<size_t>(unit.lane) * 8 * DTypeBytes(config.dtype);
  StoreEight(x, config.dtype, target.value_section + target.layout->values + at);
}

// Codes value `t` of the unit. All lanes of the warp call it.
__device__ inline void CodeValue(const CodedTarget& target,
                                 const CodingUnit& unit,
                                 const float (&x)[8],
                                 int32_t t) {
  const ShadowKvConfig& config = *target.config;
  if (!config.quantized_values()) return StoreValue(target, unit, x, t);
  CodeVector(target,
             unit,
             x,
             config.value_bits,
             target.value_section + target.layout->values,
             target.section + target.layout->value_scales,
             unit.Vector(target, t),
             t < unit.tokens);
}

// Codes key `t` of the unit for selector q2. All lanes of the warp call it.
__device__ inline void CodeKey(const CodedTarget& target,
                               const CodingUnit& unit,
                               const float (&x)[8],
                               int32_t t) {
  CodeVector(target,
             unit,
             x,
             2,
             target.section + target.layout->key_codes,
             target.section + target.layout->key_scales,
             unit.Vector(target, t),
             t < unit.tokens);
}

// Calls fn(vector of the unit, lane's elements of it) for all, two more of them on their way. Their
// code is some hundreds of instructions; that of eight in a row takes longer to read than to
// execute. All lanes of the warp call it.
template <DType kDType, typename VectorsOf, typename Function>
__device__ inline void ForEachVector(const CodedTarget& target,
                                     const CodingUnit& unit,
                                     const VectorsOf& vectors_of,
                                     const Function& fn) {
  float next[2][8];
  LoadVectors<kDType>(target, unit, vectors_of, 0, next);
#pragma unroll 1
  for (int t = 0; t < kUnitTokens; t += 2) {
    float x[2][8];
#pragma unroll
    for (int i = 0; i < 16; ++i) x[i / 8][i % 8] = next[i / 8][i % 8];
    LoadVectors<kDType>(target, unit, vectors_of, t + 2, next);
#pragma unroll
    for (int i = 0; i < 2; ++i) fn(t + i, x[i]);
  }
}

// A unit's vectors: values, and the keys of selector q2. All lanes of the warp call it.
template <typename Tokens>
__device__ inline void CodeVectors(const CodedTarget& target,
                                   const CodingUnit& unit,
                                   const Tokens& tokens) {
  const auto code_key = [&](int32_t t, const float(&x)[8]) { CodeKey(target, unit, x, t); };
  const auto code_value = [&](int32_t t, const float(&x)[8]) { CodeValue(target, unit, x, t); };
  const auto keys_of = [&](int32_t token) { return tokens.Keys(token); };
  const auto values_of = [&](int32_t token) { return tokens.Values(token); };
  WithDType(target, [&]<DType kDType>() {
    if (target.config->selector == ShadowKvSelector::kQ2) {
      ForEachVector<kDType>(target, unit, keys_of, code_key);
    }
    ForEachVector<kDType>(target, unit, values_of, code_value);
  });
}

// Codes a unit's keys and values but for their coefficients, without scores, for a configuration
// that only the device knows. `tokens` (ExactTokens) counts from the section's first.
// All lanes of the warp call it.
template <typename Tokens>
__device__ inline void CodeUnitOfAnyChunk(const CodedTarget& target,
                                          const CodingUnit& unit,
                                          const Tokens& tokens) {
  switch (target.config->chunk_tokens) {
    case 1:
      CodeChunks<1>(target, unit, tokens);
      break;
    case 2:
      CodeChunks<2>(target, unit, tokens);
      break;
    case 4:
      CodeChunks<4>(target, unit, tokens);
      break;
    default:
      CodeChunks<8>(target, unit, tokens);
  }
  CodeVectors(target, unit, tokens);
}

}  // namespace baton::kernels::cuda::shadowkv
