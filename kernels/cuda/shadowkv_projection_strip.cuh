// Coefficients of one group of up to 64 tokens in bf16 on the matrix units, for a block that is
// waited for: 16 rows of the basis. Keys are sums of two bf16 numbers, which leaves 2^-17 of them.
//
// A warp has 16 tokens and every second head. Which element of a head is which k of a product is
// free to choose; here a lane has four neighbouring pairs of 16, of both factors, so operands come
// from memory to registers as they are, many reads at a time. Through shared memory, step by step
// (shadowkv_projection.cuh), the same takes 32 times the latency of a read.
#pragma once

#include <cstdint>

#include "kernels/core/dtype.h"
#include "kernels/cuda/ptx_bf16.cuh"
#include "kernels/cuda/shadowkv_keys.cuh"
#include "kernels/cuda/shadowkv_projection.cuh"
#include "kernels/cuda/warp.cuh"
#include "kernels/kv_format/shadowkv.h"

namespace baton::kernels::cuda::shadowkv {

// Rows of the basis that a strip has.
inline constexpr int kStripRanks = 16;

// Projects a group on kStripRanks rows of the basis from `first_rank` on. layer_of and keys_of as
// Projection has them. All threads of a block of kProjectThreads call the members in turn.
template <typename LayerOf, typename KeysOf>
class ProjectionStrip {
 public:
  static constexpr int kPairs = 16;  // of a step

  // Whether a head is whole steps.
  __device__ static bool Fits(const ShadowKvConfig& config) {
    return config.dtype == DType::kBF16 && config.head_dim % (2 * kPairs) == 0;
  }

  __device__ ProjectionStrip(const ProjectionGroup& group,
                             int32_t first_rank,
                             const LayerOf& layer_of,
                             const KeysOf& keys_of,
                             ProjectionResults<kStripRanks>& results)
      : group_(group),
        config_(*group.config),
        first_rank_(first_rank),
        layer_of_(layer_of),
        keys_of_(keys_of),
        results_(results) {}

  // Adds the layers up.
  __device__ void Sum() {
    for (int64_t layer = 0; layer < group_.layers; ++layer) {
      layer_ = layer_of_(layer);
      for (int i = 0; i < 2; ++i) keys_[i] = Exists(i) ? keys_of_(layer, Token(i)) : HeadVectors{};
      for (int32_t head = Warp() / kTokenTiles; head < config_.kv_heads; head += kHeadSteps) {
#pragma unroll 4
        for (int32_t pair = 0; pair < config_.head_dim / 2; pair += kPairs) AddStep(head, pair);
      }
    }
  }

  // Codes the sums.
  __device__ void Store(const CoefficientTarget& target) {
    for (int32_t turn = 0; turn < kHeadSteps; ++turn) {
      if (Warp() / kTokenTiles == turn) AddToResults(turn == 0);
      __syncthreads();
    }
    CodeCoefficients(group_, target, first_rank_, results_);
  }

 private:
  static constexpr int kColumnTiles = kStripRanks / 8;
  static constexpr int kTokenTiles = static_cast<int>(kShadowKvBlockTokens) / 16;
  // Warps that share the heads of 16 tokens.
  static constexpr int kHeadSteps = kProjectThreads / kWarpLanes / kTokenTiles;

  __device__ static int32_t Warp() { return static_cast<int32_t>(threadIdx.x) / kWarpLanes; }
  // The lane's tokens of an operand: i of two.
  __device__ static int32_t Token(int i) { return Warp() % kTokenTiles * 16 + 8 * i + LaneGroup(); }
  __device__ bool Exists(int i) const { return Token(i) < group_.tokens; }

  // Four pairs of the lane's tokens, and of its row of every column tile, times each other.
  __device__ void AddStep(int32_t head, int32_t first_pair) {
    const int32_t half = config_.head_dim / 2;
    const int32_t column = head * config_.head_dim;
    const int32_t pair = first_pair + 4 * LaneInGroup();
    KeyPairs keys[2] = {};
    for (int i = 0; i < 2; ++i) {
      if (!Exists(i)) continue;
      keys[i] = LoadFactored(DType::kBF16,
                             half,
                             group_.rope,
                             keys_[i].head(head),
                             {.layer = layer_.key_bias, .column = column},
                             group_.position + Token(i),
                             pair);
    }
    uint2 rows[kColumnTiles][2] = {};
    for (int n = 0; n < kColumnTiles; ++n) {
      const int32_t rank = first_rank_ + 8 * n + LaneGroup();
      if (rank >= config_.rank) continue;
      const auto* row = reinterpret_cast<const uint16_t*>(layer_.basis) +
                        int64_t{rank} * config_.width() + column + pair;
      rows[n][0] = *reinterpret_cast<const uint2*>(row);
      rows[n][1] = *reinterpret_cast<const uint2*>(row + half);
    }
    Multiply(keys[0].low, keys[1].low, rows, 0);
    Multiply(keys[0].high, keys[1].high, rows, 1);
  }

  // The products of one half of the pairs; what rounding leaves of the keys first.
  __device__ void Multiply(const float (&first)[4],
                           const float (&second)[4],
                           const uint2 (&rows)[kColumnTiles][2],
                           int half) {
    const uint32_t high[4] = {PackBf16(first[0], first[1]),
                              PackBf16(second[0], second[1]),
                              PackBf16(first[2], first[3]),
                              PackBf16(second[2], second[3])};
    const uint32_t low[4] = {RestBf16(first[0], first[1], high[0]),
                             RestBf16(second[0], second[1], high[1]),
                             RestBf16(first[2], first[3], high[2]),
                             RestBf16(second[2], second[3], high[3])};
#pragma unroll
    for (int n = 0; n < kColumnTiles; ++n) {
      const uint32_t columns[2] = {rows[n][half].x, rows[n][half].y};
      MultiplyAddBf16(sums_[n], low, columns);
      MultiplyAddBf16(sums_[n], high, columns);
    }
  }

  // To the sums of the heads before, if there are any.
  __device__ void AddToResults(bool first) {
#pragma unroll
    for (int n = 0; n < kColumnTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float& sum = results_.coefficients[Token(i / 2)][8 * n + 2 * LaneInGroup() + i % 2];
        sum = first ? sums_[n][i] : sum + sums_[n][i];
      }
    }
  }

  const ProjectionGroup& group_;
  const ShadowKvConfig& config_;
  const int32_t first_rank_;
  const LayerOf& layer_of_;
  const KeysOf& keys_of_;
  ProjectionResults<kStripRanks>& results_;
  ProjectedLayer layer_;
  HeadVectors keys_[2];
  float sums_[kColumnTiles][4] = {};
};

// Projects a group on kStripRanks rows of the basis, of any configuration, and writes the
// coefficients. All threads of a block of kProjectThreads call it.
template <typename LayerOf, typename KeysOf>
__device__ inline void WriteStrip(const ProjectionGroup& group,
                                  const CoefficientTarget& target,
                                  int32_t first_rank,
                                  const LayerOf& layer_of,
                                  const KeysOf& keys_of,
                                  ProjectionShared<kStripRanks>& shared) {
  using Strip = ProjectionStrip<LayerOf, KeysOf>;
  if (!Strip::Fits(*group.config)) {
    WriteCoefficients<kStripRanks>(group, target, first_rank, layer_of, keys_of, shared);
    return;
  }
  Strip strip(group, first_rank, layer_of, keys_of, shared.results);
  strip.Sum();
  strip.Store(target);
}

}  // namespace baton::kernels::cuda::shadowkv
