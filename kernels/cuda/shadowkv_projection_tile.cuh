// Coefficients of a prompt in bf16 on the matrix units: 64 tokens and 160 rows of the basis a
// block, as many as are usual, so that a key is un-rotated once. Sixteen warps, because half of the
// work is to wait for keys and to turn them. Keys are sums of two bf16 numbers, which leaves 2^-17
// of them.
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

inline constexpr int kTokens = projection_internal::kTokens;
inline constexpr int kRanks = 160;  // rows of the basis
// Pairs of elements of a head that are multiplied between two synchronisations.
inline constexpr int kPairs = 32;
// Elements of kPairs pairs, the low ones first, and 16 bytes: rows so far apart are read without
// conflicts.
inline constexpr int kStride = 2 * kPairs + 8;

struct Stage {
  alignas(16) uint16_t high[kTokens][kStride];  // of keys
  alignas(16) uint16_t low[kTokens][kStride];
  alignas(16) uint16_t basis[kRanks][kStride];
};

}  // namespace projection_tile_internal

union ProjectionTileShared {
  projection_tile_internal::Stage stages[2];
  ProjectionResults<projection_tile_internal::kRanks> results;
};

// Rows of the basis that a ProjectionTile has, and threads of its block.
inline constexpr int kProjectionTileRanks = projection_tile_internal::kRanks;
inline constexpr int kProjectionTileThreads = 512;

// Projects up to 64 tokens from `first` on, on the rows of the basis from `first_rank` on. All
// threads of a block of kProjectionTileThreads call the members in turn.
class ProjectionTile {
 public:
  __device__ ProjectionTile(const FactorProblem& problem,
                            const ProjectionGroup& group,
                            int32_t first_rank,
                            ProjectionTileShared& shared)
      : problem_(problem), group_(group), first_rank_(first_rank), shared_(shared) {}

  // Adds the layers up. The next stage is on its way while one is multiplied.
  __device__ void Sum() {
    const int32_t half = problem_.config.head_dim / 2;
    int buffer = 0;
    for (int64_t layer = 0; layer < problem_.layers.count; ++layer) {
      Enter(layer);
      Load(0, 0, shared_.stages[buffer]);
      int32_t head = 0;
      int32_t pair = 0;
      while (pair < half) {
        Store(shared_.stages[buffer]);
        WaitForCopies<0>();
        __syncthreads();  // everyone is done with the other buffer too
        if (++head == problem_.config.kv_heads) {
          head = 0;
          pair += kPairs;
        }
        if (pair < half) Load(head, pair, shared_.stages[buffer ^ 1]);
        Add(shared_.stages[buffer]);
        buffer ^= 1;
      }
    }
  }

  // Codes the sums.
  __device__ void Write(const CoefficientTarget& target) {
    __syncthreads();  // everyone is done with the stages
    const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
    for (int j = 0; j < kRankTiles; ++j) {
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
  static constexpr int kRanks = projection_tile_internal::kRanks;
  // Warps lie over four groups of 16 tokens and four of rows of the basis.
  static constexpr int kWarpRanks = kRanks / 4;
  static constexpr int kRankTiles = kWarpRanks / 8;
  static_assert(kProjectionTileThreads == 32 * 4 * 4 && kRankTiles * 8 == kWarpRanks);

  // The token whose elements the thread loads, and the first of its four pairs.
  static constexpr int kTokenThreads = kPairs / 4;
  static_assert(kProjectionTileThreads == kTokenThreads * projection_tile_internal::kTokens);
  __device__ static int LoadedToken() { return static_cast<int>(threadIdx.x) / kTokenThreads; }
  __device__ static int LoadedPair() { return static_cast<int>(threadIdx.x) % kTokenThreads * 4; }
  // The row of the basis that the thread copies a part of at every turn, kTurnRows after the one
  // before, and the first of four elements of the stage.
  static constexpr int kRowThreads = 2 * kPairs / 4;
  static constexpr int kTurnRows = kProjectionTileThreads / kRowThreads;
  __device__ static int CopiedRow() { return static_cast<int>(threadIdx.x) / kRowThreads; }
  __device__ static int CopiedElement() { return static_cast<int>(threadIdx.x) % kRowThreads * 4; }
  // The warp's results: 16 tokens and kWarpRanks rows of the basis from here on.
  __device__ static int FirstToken() { return static_cast<int>(threadIdx.x) / 128 * 16; }
  __device__ static int FirstRank() { return static_cast<int>(threadIdx.x) / 32 % 4 * kWarpRanks; }

  __device__ void Enter(int64_t index) {
    const ShadowKvConfig& config = problem_.config;
    layer_ = problem_.layers[index];
    if (LoadedToken() < group_.tokens) {
      keys_ = PageTokens(problem_.pages, layer_.page_table)
                  .Keys(static_cast<int32_t>(group_.position) + LoadedToken());
    }
    const int32_t of_half = CopiedElement() < kPairs ? 0 : config.head_dim / 2;
    basis_ = reinterpret_cast<const uint16_t*>(layer_.prompt + problem_.basis) +
             int64_t{first_rank_ + CopiedRow()} * config.width() + of_half +
             CopiedElement() % kPairs;
  }

  // Starts to read pairs [pair, pair + kPairs) of a head, the basis into `stage`: zeros past the
  // head's last, the group's last token and the last row of the basis. Heads come in turn for each
  // `pair`, so that what turns their keys is read once.
  __device__ void Load(int32_t head, int32_t pair, Stage& stage) {
    const ShadowKvConfig& config = problem_.config;
    const int32_t half = config.head_dim / 2;
    const int32_t mine = pair + LoadedPair();
    const int32_t column = head * config.head_dim;
    CopyBasis(column, pair, stage);
    next_ = {};
    next_column_ = column;
    next_pair_ = mine;
    if (mine >= half || LoadedToken() >= group_.tokens) return;
    next_ = LoadStoredPairs(half, keys_.head(head), mine);
    if (head == 0) {
      angles_ = LoadAngles(half, problem_.rope, group_.position + LoadedToken(), mine);
    }
  }

  __device__ void CopyBasis(int32_t column, int32_t pair, Stage& stage) const {
    static_assert(kRanks % kTurnRows == 0);
    const ShadowKvConfig& config = problem_.config;
    const bool of_head = pair + CopiedElement() % kPairs < config.head_dim / 2;
    const uint16_t* from = basis_ + (column + pair);
#pragma unroll
    for (int turn = 0; turn < kRanks / kTurnRows; ++turn) {
      const int row = CopiedRow() + turn * kTurnRows;
      const bool there = of_head && first_rank_ + row < config.rank;
      const int64_t below = int64_t{turn * kTurnRows} * config.width();
      CopyAsync8(&stage.basis[row][CopiedElement()],
                 from + (there ? below : -int64_t{column + pair}),
                 there ? 8 : 0);
    }
    CommitCopies();
  }

  // Un-rotates what was read.
  __device__ void Store(Stage& stage) const {
    const int32_t half = problem_.config.head_dim / 2;
    const HeadBias bias = {.layer = layer_.key_bias, .column = next_column_};
    KeyPairs keys = {};
    if (next_pair_ < half && LoadedToken() < group_.tokens) {
      keys = Factored(Numbers(next_), angles_, half, bias, next_pair_);
    }
    uint16_t* high = &stage.high[LoadedToken()][LoadedPair()];
    uint16_t* low = &stage.low[LoadedToken()][LoadedPair()];
    StoreSplit(keys.low, high, low);
    StoreSplit(keys.high, high + kPairs, low + kPairs);
  }

  __device__ void Add(const Stage& stage) {
    const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
    for (int k = 0; k < 2 * kPairs; k += 32) {
      uint32_t high[2][4];  // of 16 elements each
      uint32_t low[2][4];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int element = k + 16 * i + lane / 16 * 8;
        LoadMatrices(&stage.high[FirstToken() + lane % 16][element], high[i]);
        LoadMatrices(&stage.low[FirstToken() + lane % 16][element], low[i]);
      }
#pragma unroll
      for (int j = 0; j < kRankTiles; ++j) {
        uint32_t row[4];
        LoadMatrices(&stage.basis[FirstRank() + 8 * j + lane % 8][k + lane / 8 * 8], row);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const uint32_t columns[2] = {row[2 * i], row[2 * i + 1]};
          MultiplyAddBf16(sums_[j], low[i], columns);
          MultiplyAddBf16(sums_[j], high[i], columns);
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
  const uint16_t* basis_ = nullptr;  // what the thread copies of it for the first pairs
  StoredPairs next_;                 // pairs that the next stage gets, and which they are
  PairAngles angles_;                // of these
  int32_t next_column_ = 0;
  int32_t next_pair_ = 0;
  float sums_[kRankTiles][4] = {};
};

}  // namespace baton::kernels::cuda::shadowkv
