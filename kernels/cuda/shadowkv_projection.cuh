// Coefficients of coded tokens: keys before RoPE times the basis, transposed.
#pragma once

#include <cuda_fp16.h>

#include <cstddef>
#include <cstdint>

#include "kernels/core/dtype.h"
#include "kernels/cuda/shadowkv_keys.cuh"
#include "kernels/kv_format/shadowkv.h"
#include "kernels/kv_format/shadowkv_codec.h"
#include "kernels/ops/shadowkv_params.h"

namespace baton::kernels::cuda::shadowkv {

// Threads of a block that projects.
inline constexpr int kProjectThreads = 256;

// Up to 64 tokens whose coefficients are wanted, of `layers` layers side by side.
struct ProjectionGroup {
  const ShadowKvConfig* config = nullptr;
  ShadowKvRope rope;
  int64_t position = 0;  // of the first token
  int32_t tokens = 0;
  int64_t layers = 1;
};

// One layer of them.
struct ProjectedLayer {
  const std::byte* basis = nullptr;  // [rank][width] of the configuration's dtype
  const float* key_bias = nullptr;   // [width] or null
};

// Where coefficients go: group `group` of 64 tokens of a section of `tokens` tokens.
struct CoefficientTarget {
  std::byte* section = nullptr;  // ShadowKvCoefficientLayout
  int64_t tokens = 0;
  int64_t group = 0;
};

namespace projection_internal {

inline constexpr int kTokens = static_cast<int>(kShadowKvBlockTokens);
// Pairs of elements of a head that are multiplied at once: elements i and i + head_dim / 2.
inline constexpr int kPairs = 16;
inline constexpr int kTokenStride = kTokens + 4;

// Threads of a block lie over kRanks / kThreadRanks columns and 64 / 4 rows of tokens.
template <int kRanks>
inline constexpr int kThreadRanks = kRanks * kTokens / 4 / kProjectThreads;

// ShadowKvCoefficientScale and ShadowKvCoefficientCode with the device's conversions, which round
// as theirs do.
__device__ inline uint16_t CoefficientScale(float largest) {
  return __half_as_ushort(
      __float2half_ru(fminf(__fdiv_rn(largest, kShadowKvCoefficientCode), 65504.0f)));
}
__device__ inline int8_t CoefficientCode(float value, float scale) {
  if (scale == 0.0f) return 0;
  const float code = rintf(__fdiv_rn(value, scale));
  return static_cast<int8_t>(
      fminf(fmaxf(code, -kShadowKvCoefficientCode), kShadowKvCoefficientCode));
}

}  // namespace projection_internal

// Coefficients of a group before they are coded, and their columns' scales.
template <int kRanks>
struct ProjectionResults {
  float coefficients[projection_internal::kTokens][kRanks + 1];
  float scales[kRanks];
};

namespace projection_internal {

// Finds and stores the scale of each column, from its largest magnitude among the group's tokens.
template <int kRanks>
__device__ inline void FindScales(const ProjectionGroup& group,
                                  const CoefficientTarget& target,
                                  int32_t first_rank,
                                  ProjectionResults<kRanks>& results) {
  const ShadowKvConfig& config = *group.config;
  const auto rank = static_cast<int32_t>(threadIdx.x);
  if (rank < kRanks && first_rank + rank < config.rank) {
    float largest = 0.0f;
    for (int32_t token = 0; token < group.tokens; ++token) {
      largest = fmaxf(largest, fabsf(results.coefficients[token][rank]));
    }
    const uint16_t scale = CoefficientScale(largest);
    const size_t scales = ShadowKvCoefficientLayout(config, target.tokens).scales;
    reinterpret_cast<uint16_t*>(target.section +
                                scales)[target.group * config.rank + first_rank + rank] = scale;
    results.scales[rank] = __half2float(__ushort_as_half(scale));
  }
  __syncthreads();
}

}  // namespace projection_internal

// Codes the results, which are of the basis's rows from `first_rank` on. All threads of the block
// call it, each behind what it wrote of the results.
template <int kRanks>
__device__ inline void CodeCoefficients(const ProjectionGroup& group,
                                        const CoefficientTarget& target,
                                        int32_t first_rank,
                                        ProjectionResults<kRanks>& results) {
  const ShadowKvConfig& config = *group.config;
  __syncthreads();
  if (config.int8_coefficients) {
    projection_internal::FindScales(group, target, first_rank, results);
  }
  const int32_t ranks = min(kRanks, config.rank - first_rank);
  const int64_t first_token = target.group * kShadowKvBlockTokens;
  const auto threads = static_cast<int>(blockDim.x);
  for (int at = static_cast<int>(threadIdx.x); at < group.tokens * kRanks; at += threads) {
    const int token = at / kRanks;
    const int rank = at % kRanks;
    if (rank >= ranks) continue;
    const int64_t index = (first_token + token) * config.rank + first_rank + rank;
    const float x = results.coefficients[token][rank];
    if (config.int8_coefficients) {
      reinterpret_cast<int8_t*>(target.section)[index] =
          projection_internal::CoefficientCode(x, results.scales[rank]);
    } else {
      StoreElement(x, config.dtype, index, target.section);
    }
  }
  __syncthreads();
}

template <int kRanks>
union ProjectionShared {
  struct {
    // Elements of kPairs pairs, the low ones first, by token and by rank.
    alignas(16) float keys[2 * projection_internal::kPairs][projection_internal::kTokenStride];
    alignas(16) float basis[2 * projection_internal::kPairs][kRanks + 4];
  } factors;
  ProjectionResults<kRanks> results;
};

// Projects a group on kRanks rows of the basis from `first_rank` on. layer_of(i) tells layer i,
// keys_of(i, token) its keys. All threads of the block call the members in turn.
template <int kRanks, typename LayerOf, typename KeysOf>
class Projection {
 public:
  __device__ Projection(const ProjectionGroup& group,
                        int32_t first_rank,
                        const LayerOf& layer_of,
                        const KeysOf& keys_of,
                        ProjectionShared<kRanks>& shared)
      : group_(group),
        config_(*group.config),
        first_rank_(first_rank),
        layer_of_(layer_of),
        keys_of_(keys_of),
        shared_(shared) {}

  // Adds the layers up, in their order, in fp32.
  __device__ void Sum() {
    const int32_t half = config_.head_dim / 2;
    for (int64_t layer = 0; layer < group_.layers; ++layer) {
      EnterLayer(layer);
      Load(0, 0);
      int32_t head = 0;
      int32_t pair = 0;
      while (head < config_.kv_heads) {
        Stage();
        pair += projection_internal::kPairs;
        if (pair >= half) {
          pair = 0;
          ++head;
        }
        if (head < config_.kv_heads) Load(head, pair);
        AddStage();
        __syncthreads();
      }
    }
  }

  // Codes the sums.
  __device__ void Store(const CoefficientTarget& target) {
    constexpr int kThreadRanks = projection_internal::kThreadRanks<kRanks>;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
      for (int j = 0; j < kThreadRanks; ++j) {
        shared_.results.coefficients[FirstToken() + i][FirstRank() + j] = sums_[i][j];
      }
    }
    CodeCoefficients(group_, target, first_rank_, shared_.results);
  }

 private:
  // The token (rank) whose elements the thread loads, and the first of its four pairs.
  __device__ static int LoadedRow() { return static_cast<int>(threadIdx.x) / 4; }
  __device__ static int LoadedPair() { return static_cast<int>(threadIdx.x) % 4 * 4; }
  // The thread's results: four tokens and kThreadRanks ranks from here on.
  __device__ static int FirstToken() { return static_cast<int>(threadIdx.x) / 16 * 4; }
  __device__ static int FirstRank() {
    return static_cast<int>(threadIdx.x) % 16 * projection_internal::kThreadRanks<kRanks>;
  }

  __device__ void EnterLayer(int64_t index) {
    layer_ = layer_of_(index);
    if (LoadedRow() < group_.tokens) keys_ = keys_of_(index, LoadedRow());
  }

  // Reads pairs [pair, pair + kPairs) of a head: zeros past the head's last, the group's last token
  // and the last rank.
  __device__ void Load(int32_t head, int32_t pair) {
    const int32_t half = config_.head_dim / 2;
    const int32_t mine = pair + LoadedPair();
    const int32_t column = head * config_.head_dim;
    const int32_t rank = first_rank_ + LoadedRow();
    next_keys_ = {};
    next_basis_ = {};
    if (mine >= half) return;
    if (LoadedRow() < group_.tokens) {
      next_keys_ = LoadFactored(config_.dtype,
                                half,
                                group_.rope,
                                keys_.head(head),
                                {.layer = layer_.key_bias, .column = column},
                                group_.position + LoadedRow(),
                                mine);
    }
    if (LoadedRow() < kRanks && rank < config_.rank) {
      const int64_t row = rank * config_.width() + column;
      LoadElements(layer_.basis, config_.dtype, row + mine, next_basis_.low);
      LoadElements(layer_.basis, config_.dtype, row + half + mine, next_basis_.high);
    }
  }

  __device__ void Stage() {
    constexpr int kPairs = projection_internal::kPairs;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int pair = LoadedPair() + i;
      shared_.factors.keys[pair][LoadedRow()] = next_keys_.low[i];
      shared_.factors.keys[kPairs + pair][LoadedRow()] = next_keys_.high[i];
      if (LoadedRow() < kRanks) {
        shared_.factors.basis[pair][LoadedRow()] = next_basis_.low[i];
        shared_.factors.basis[kPairs + pair][LoadedRow()] = next_basis_.high[i];
      }
    }
    __syncthreads();
  }

  __device__ void AddStage() {
    constexpr int kThreadRanks = projection_internal::kThreadRanks<kRanks>;
#pragma unroll 8
    for (int k = 0; k < 2 * projection_internal::kPairs; ++k) {
      const float4 four = *reinterpret_cast<const float4*>(&shared_.factors.keys[k][FirstToken()]);
      const float tokens[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
      for (int j = 0; j < kThreadRanks; ++j) {
        const float row = shared_.factors.basis[k][FirstRank() + j];
#pragma unroll
        for (int i = 0; i < 4; ++i) sums_[i][j] = __fmaf_rn(tokens[i], row, sums_[i][j]);
      }
    }
  }

  const ProjectionGroup& group_;
  const ShadowKvConfig& config_;
  const int32_t first_rank_;
  const LayerOf& layer_of_;
  const KeysOf& keys_of_;
  ProjectionShared<kRanks>& shared_;
  ProjectedLayer layer_;
  HeadVectors keys_;
  KeyPairs next_keys_;
  KeyPairs next_basis_;
  float sums_[4][projection_internal::kThreadRanks<kRanks>] = {};
};

// Projects a group on kRanks rows of the basis and writes the coefficients. All threads of a block
// of kProjectThreads call it.
template <int kRanks, typename LayerOf, typename KeysOf>
__device__ inline void WriteCoefficients(const ProjectionGroup& group,
                                         const CoefficientTarget& target,
                                         int32_t first_rank,
                                         const LayerOf& layer_of,
                                         const KeysOf& keys_of,
                                         ProjectionShared<kRanks>& shared) {
  Projection<kRanks, LayerOf, KeysOf> projection(group, first_rank, layer_of, keys_of, shared);
  projection.Sum();
  projection.Store(target);
}

}  // namespace baton::kernels::cuda::shadowkv
