// Coefficients of a prompt in bf16 on the matrix units: 64 tokens and 160 rows of the basis a
// block, as many as are usual, so that a key is un-rotated once. Sixteen warps, because half of the
// work is to wait for keys and to turn them; of those that share a scheduler half ask for what
// comes next while the others multiply. Keys are sums of two bf16 numbers, which leaves 2^-17 of
// them.
#pragma once

#include <cstdint>

#include "kernels/core/dtype.h"
#include "kernels/cuda/device_code.h"
#include "kernels/cuda/ptx_bf16.cuh"
#include "kernels/cuda/ptx_tile.cuh"
#include "kernels/cuda/shadowkv_gram.cuh"
#include "kernels/cuda/shadowkv_keys.cuh"
#include "kernels/cuda/shadowkv_projection.cuh"
#include "kernels/cuda/shadowkv_projection_place.cuh"
#include "kernels/cuda/warp.cuh"
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

struct KeyStage {
  alignas(16) uint16_t high[kTokens][kStride];
  alignas(16) uint16_t low[kTokens][kStride];
};
struct BasisStage {
  alignas(16) uint16_t rows[kRanks][kStride];
};
// So that rows of the basis have time to arrive that warps ask for after they have multiplied.
// Older devices have less memory for them (device_code.h).
constexpr int BasisStages(bool hopper_code) { return hopper_code ? 4 : 2; }
inline constexpr int kBasisStages = BasisStages(kHopperCode);

template <bool kHopper>
struct Stages {
  KeyStage keys[2];
  BasisStage basis[BasisStages(kHopper)];
};

}  // namespace projection_tile_internal

template <bool kHopper>
union ProjectionTileMemory {
  projection_tile_internal::Stages<kHopper> stages;
  ProjectionResults<projection_tile_internal::kRanks> results;
};
using ProjectionTileShared = ProjectionTileMemory<kHopperCode>;

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

  // Adds the layers up. The next keys are on their way while a stage is multiplied, its rows of the
  // basis during kBasisStages - 1 stages.
  __device__ void Sum() {
    using projection_tile_internal::kBasisStages;
    Place copied;
    Place read;
    for (int stage = 0; stage < kBasisStages - 1; ++stage) {
      CopyBasis(copied, shared_.stages.basis[stage]);
      copied.Advance(problem_.config);
    }
    Load(read);
    int slot = 0;  // of the basis
#pragma unroll 1
    for (int buffer = 0; Exists(read); buffer ^= 1) {
      Store(read, shared_.stages.keys[buffer]);
      read.Advance(problem_.config);
      WaitForCopies<kBasisStages - 2>();
      __syncthreads();  // everyone is done with the stage before too
      TakeTurns(
          [&] {
            if (Exists(read)) Load(read);
            CopyBasis(copied, shared_.stages.basis[slot == 0 ? kBasisStages - 1 : slot - 1]);
          },
          [&] { Add(shared_.stages.keys[buffer], shared_.stages.basis[slot]); });
      copied.Advance(problem_.config);
      slot = slot + 1 == kBasisStages ? 0 : slot + 1;
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
  using KeyStage = projection_tile_internal::KeyStage;
  using BasisStage = projection_tile_internal::BasisStage;
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

  using Place = ProjectionPlace<kPairs>;

  __device__ int32_t Half() const { return problem_.config.head_dim / 2; }
  __device__ bool Exists(const Place& place) const { return place.layer < problem_.layers.count; }
  // Whether there are the thread's pairs, and its token.
  __device__ bool HasPairs(const Place& place) const {
    return place.pair + LoadedPair() < Half() && LoadedToken() < group_.tokens;
  }

  // Starts to read the keys of a stage: not those behind the head's last pair and the group's last
  // token.
  __device__ void Load(const Place& place) {
    if (place.head == 0 && place.pair == 0) {
      const ShadowKvJointLayer layer = problem_.layers[place.layer];
      key_bias_ = layer.key_bias;
      if (LoadedToken() < group_.tokens) {
        keys_ = PageTokens(problem_.pages, layer.page_table)
                    .Keys(static_cast<int32_t>(group_.position) + LoadedToken());
      }
    }
    if (!HasPairs(place)) return;
    const int32_t pair = place.pair + LoadedPair();
    next_ = LoadStoredPairs(Half(), keys_.head(place.head), pair);
    if (place.head == 0) {
      angles_ = LoadAngles(Half(), problem_.rope, group_.position + LoadedToken(), pair);
    }
  }

  // Starts to copy a stage's rows of the basis, if there is such a stage: zeros behind the head's
  // last pair and the last row of the basis.
  __device__ void CopyBasis(const Place& place, BasisStage& stage) {
    static_assert(kRanks % kTurnRows == 0);
    if (Exists(place)) {
      const int32_t width = problem_.config.width();
      if (place.head == 0 && place.pair == 0) {
        basis_ = reinterpret_cast<const uint16_t*>(problem_.layers[place.layer].prompt +
                                                   problem_.basis) +
                 int64_t{first_rank_ + CopiedRow()} * width +
                 (CopiedElement() < kPairs ? 0 : Half()) + CopiedElement() % kPairs;
      }
      const bool of_head = place.pair + CopiedElement() % kPairs < Half();
      const int32_t rows = of_head ? problem_.config.rank - first_rank_ - CopiedRow() : 0;
      const uint16_t* from = basis_ + (place.head * problem_.config.head_dim + place.pair);
#pragma unroll
      for (int down = 0; down < kRanks; down += kTurnRows) {
        CopyAsync8(&stage.rows[CopiedRow() + down][CopiedElement()], from, down < rows ? 8 : 0);
        from += int64_t{kTurnRows} * width;
      }
    }
    CommitCopies();
  }

  // Un-rotates what was read.
  __device__ void Store(const Place& place, KeyStage& stage) const {
    const HeadBias bias = {.layer = key_bias_,
                           .column = int64_t{place.head} * problem_.config.head_dim};
    KeyPairs keys = {};
    if (HasPairs(place)) {
      keys = Factored(Numbers(next_), angles_, Half(), bias, place.pair + LoadedPair());
    }
    uint16_t* high = &stage.high[LoadedToken()][LoadedPair()];
    uint16_t* low = &stage.low[LoadedToken()][LoadedPair()];
    StoreSplit(keys.low, high, low);
    StoreSplit(keys.high, high + kPairs, low + kPairs);
  }

  __device__ void Add(const KeyStage& keys, const BasisStage& basis) {
    const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
    for (int k = 0; k < 2 * kPairs; k += 32) {
      uint32_t high[2][4];  // of 16 elements each
      uint32_t low[2][4];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int element = k + 16 * i + lane / 16 * 8;
        LoadMatrices(&keys.high[FirstToken() + lane % 16][element], high[i]);
        LoadMatrices(&keys.low[FirstToken() + lane % 16][element], low[i]);
      }
      uint32_t rows[kRankTiles][4];
#pragma unroll
      for (int j = 0; j < kRankTiles; ++j) {
        LoadMatrices(&basis.rows[FirstRank() + 8 * j + lane % 8][k + lane / 8 * 8], rows[j]);
      }
      // A product to the same sums waits for the one before: others in between.
#pragma unroll
      for (int i = 0; i < 2; ++i) {
#pragma unroll
        for (int j = 0; j < kRankTiles; ++j) {
          MultiplyAddBf16(sums_[j], low[i], {rows[j][2 * i], rows[j][2 * i + 1]});
        }
#pragma unroll
        for (int j = 0; j < kRankTiles; ++j) {
          MultiplyAddBf16(sums_[j], high[i], {rows[j][2 * i], rows[j][2 * i + 1]});
        }
      }
    }
  }

  const FactorProblem& problem_;
  const ProjectionGroup& group_;
  const int32_t first_rank_;
  ProjectionTileShared& shared_;
  const uint16_t* basis_ = nullptr;  // what the thread copies of the layer's for its first pairs
  // Of the keys that were read last:
  const float* key_bias_ = nullptr;
  HeadVectors keys_;
  StoredPairs next_;
  PairAngles angles_;
  float sums_[kRankTiles][4] = {};
};

}  // namespace baton::kernels::cuda::shadowkv
