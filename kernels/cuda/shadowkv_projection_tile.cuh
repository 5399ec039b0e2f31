// Coefficients of a prompt in bf16 on the matrix units: 64 tokens and 64 rows of the basis a block.
// Keys are sums of two bf16 numbers, which leaves 2^-17 of them.
#pragma once

#include <cstdint>

#include "kernels/core/dtype.h"
#include "kernels/cuda/ptx_bf16.cuh"
#include "kernels/cuda/ptx_tile.cuh"
#include "kernels/cuda/shadowkv_gram.cuh"
#include "kernels/cuda/shadowkv_keys.cuh"
#include "kernels/cuda/shadowkv_projection.cuh"
#include "kernels/ops/shadowkv_params.h"

namespace baton::kernels::cuda::shadowkv {

namespace projection_tile_internal {

inline constexpr int kRows = 64;  // tokens, and rows of the basis
inline constexpr int kPairs = projection_internal::kPairs;
// Elements of kPairs pairs, the low ones first, and 16 bytes: rows so far apart are read without
// conflicts.
inline constexpr int kStride = 2 * kPairs + 8;

struct Stage {
  alignas(16) uint16_t high[kRows][kStride];  // of keys
  alignas(16) uint16_t low[kRows][kStride];
  alignas(16) uint16_t basis[kRows][kStride];
};

}  // namespace projection_tile_internal

union ProjectionTileShared {
  projection_tile_internal::Stage stages[2];
  ProjectionResults<projection_tile_internal::kRows> results;
};

// Rows of the basis that a ProjectionTile has.
inline constexpr int kProjectionTileRanks = projection_tile_internal::kRows;

// Projects up to 64 tokens from `first` on, on the rows of the basis from `first_rank` on. All
// threads of a block of kProjectThreads call the members in turn.
class ProjectionTile {
 public:
  __device__ ProjectionTile(const FactorProblem& problem,
                            const ProjectionGroup& group,
                            int32_t first_rank,
                            ProjectionTileShared& shared)
      : problem_(problem), group_(group), first_rank_(first_rank), shared_(shared) {}

  // Adds the layers up. The next stage is loaded while one is multiplied.
  __device__ void Sum() {
    const int32_t half = problem_.config.head_dim / 2;
    const int32_t head_steps = (half + kPairs - 1) / kPairs;
    int buffer = 0;
    for (int64_t layer = 0; layer < problem_.layers.count; ++layer) {
      Enter(layer);
      const int32_t steps = problem_.config.kv_heads * head_steps;
      Load(0, 0);
      for (int32_t step = 0; step < steps; ++step, buffer ^= 1) {
        Store(shared_.stages[buffer]);
        __syncthreads();  // everyone is done with the other buffer too
        const int32_t next = step + 1;
        if (next < steps) Load(next / head_steps, next % head_steps * kPairs);
        Add(shared_.stages[buffer]);
      }
    }
  }

  // Codes the sums.
  __device__ void Write(const CoefficientTarget& target) {
    __syncthreads();  // everyone is done with the stages
    const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        shared_.results.coefficients[FirstToken() + i / 2 * 8 + lane / 4]
                                    [FirstRank() + 8 * j + lane % 4 * 2 + i % 2] = sums_[j][i];
      }
    }
    CodeCoefficients(group_, target, first_rank_, shared_.results);
  }

 private:
  using Stage = projection_tile_internal::Stage;
  static constexpr int kPairs = projection_tile_internal::kPairs;

  // The token (row of the basis) whose elements the thread loads, and the first of its four pairs.
  __device__ static int LoadedRow() { return static_cast<int>(threadIdx.x) / 4; }
  __device__ static int LoadedPair() { return static_cast<int>(threadIdx.x) % 4 * 4; }
  // The warp's results: 16 tokens and 32 rows of the basis from here on.
  __device__ static int FirstToken() { return static_cast<int>(threadIdx.x) / 64 * 16; }
  __device__ static int FirstRank() { return static_cast<int>(threadIdx.x) / 32 % 2 * 32; }

  __device__ void Enter(int64_t index) {
    layer_ = problem_.layers[index];
    if (LoadedRow() < group_.tokens) {
      keys_ = PageTokens{problem_.pages, layer_.page_table}.Keys(
          static_cast<int32_t>(group_.position) + LoadedRow());
    }
  }

  // Reads pairs [pair, pair + kPairs) of a head: zeros past the head's last, the group's last token
  // and the last row of the basis.
  __device__ void Load(int32_t head, int32_t pair) {
    const ShadowKvConfig& config = problem_.config;
    const int32_t half = config.head_dim / 2;
    const int32_t mine = pair + LoadedPair();
    const int32_t column = head * config.head_dim;
    const int32_t rank = first_rank_ + LoadedRow();
    next_keys_ = {};
    next_low_ = {};
    next_high_ = {};
    if (mine >= half) return;
    if (LoadedRow() < group_.tokens) {
      next_keys_ = LoadFactored(DType::kBF16,
                                half,
                                problem_.rope,
                                keys_.head(head),
                                {.layer = layer_.key_bias, .column = column},
                                group_.position + LoadedRow(),
                                mine);
    }
    if (rank < config.rank) {
      const auto* row = reinterpret_cast<const uint16_t*>(layer_.prompt + problem_.basis) +
                        int64_t{rank} * config.width() + column + mine;
      next_low_ = *reinterpret_cast<const uint2*>(row);
      next_high_ = *reinterpret_cast<const uint2*>(row + half);
    }
  }

  __device__ void Store(Stage& stage) const {
    uint16_t* high = &stage.high[LoadedRow()][LoadedPair()];
    uint16_t* low = &stage.low[LoadedRow()][LoadedPair()];
    uint16_t* basis = &stage.basis[LoadedRow()][LoadedPair()];
    StoreSplit(next_keys_.low, high, low);
    StoreSplit(next_keys_.high, high + kPairs, low + kPairs);
    *reinterpret_cast<uint2*>(basis) = next_low_;
    *reinterpret_cast<uint2*>(basis + kPairs) = next_high_;
  }

  __device__ void Add(const Stage& stage) {
    const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
    for (int k = 0; k < 2 * kPairs; k += 16) {
      uint32_t high[4];
      uint32_t low[4];
      LoadMatrices(&stage.high[FirstToken() + lane % 16][k + lane / 16 * 8], high);
      LoadMatrices(&stage.low[FirstToken() + lane % 16][k + lane / 16 * 8], low);
#pragma unroll
      for (int j = 0; j < 4; j += 2) {
        uint32_t rows[4];
        LoadMatrices(
            &stage.basis[FirstRank() + 8 * j + lane / 16 * 8 + lane % 8][k + lane / 8 % 2 * 8],
            rows);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const uint32_t columns[2] = {rows[2 * i], rows[2 * i + 1]};
          MultiplyAddBf16(sums_[j + i], low, columns);
          MultiplyAddBf16(sums_[j + i], high, columns);
        }
      }
    }
  }

  const FactorProblem& problem_;
  const ProjectionGroup& group_;
  const int32_t first_rank_;
  ProjectionTileShared& shared_;
  ShadowKvJointLayer layer_;
  HeadVectors keys_;
  KeyPairs next_keys_;
  uint2 next_low_;  // of the row of the basis
  uint2 next_high_;
  float sums_[4][4] = {};
};

}  // namespace baton::kernels::cuda::shadowkv
