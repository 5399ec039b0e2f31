// Coefficients of a prompt in bf16 by warpgroups: two groups of 64 tokens and 160 rows of the basis
// a block, a warpgroup for each group, which turns its keys while it multiplies, and one that
// brings keys and basis. Keys are sums of two bf16 numbers, which leaves 2^-17 of them.
//
// A lane turns what it multiplies of a token's key: of every sixteen steps of depth two pairs, low
// elements in the first eight and high ones in the others. So turned keys go nowhere but to
// operands, and what turns them is read once for all heads.
#pragma once

#include <cstdint>

#include "kernels/core/dtype.h"
#include "kernels/cuda/device_code.h"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/ptx_bf16.cuh"
#include "kernels/cuda/ptx_tile.cuh"
#include "kernels/cuda/ptx_warpgroup.cuh"
#include "kernels/cuda/ring_place.cuh"
#include "kernels/cuda/shadowkv_gram.cuh"
#include "kernels/cuda/shadowkv_keys.cuh"
#include "kernels/cuda/shadowkv_projection.cuh"
#include "kernels/cuda/shadowkv_projection_place.cuh"
#include "kernels/cuda/warp.cuh"
#include "kernels/ops/shadowkv_params.h"

namespace baton::kernels::cuda::shadowkv {

namespace projection_warpgroups_internal {

inline constexpr int kGroups = 2;
inline constexpr int kRanks = 160;  // rows of the basis
// Pairs of elements of a head that are multiplied behind one wait, and in one product.
inline constexpr int kPairs = 32;
inline constexpr int kProductPairs = 8;
inline constexpr int kProducts = kPairs / kProductPairs;
inline constexpr int32_t kStages = 4;

// Rows of the basis as operands: an eighth of the depth is low elements of kProductPairs pairs or
// high ones, in turns. 16 bytes more than its rows take spread what a warp writes over all banks.
struct BasisStage {
  static constexpr int kDepths = 2 * kProducts;
  static constexpr uint32_t kDepthBytes = kRanks * 16 + 16;
  alignas(16) std::byte depths[kDepths][kDepthBytes];

  __device__ std::byte* Row(int depth, int row) { return depths[depth] + row * 16; }
};

// Keys as they are stored: a token's low elements, then its high ones, and 16 bytes, so that tokens
// are read without conflicts.
struct KeyStage {
  static constexpr int kTokens = kGroups * projection_internal::kTokens;
  alignas(16) uint16_t tokens[kTokens][2 * kPairs + 8];
};

struct Stage {
  BasisStage basis;
  KeyStage keys;
};

}  // namespace projection_warpgroups_internal

struct ProjectionWarpgroupsShared {
  union {
    projection_warpgroups_internal::Stage stages[projection_warpgroups_internal::kStages];
    ProjectionResults<projection_warpgroups_internal::kRanks> results;
  };
  uint64_t full[projection_warpgroups_internal::kStages];
  uint64_t empty[projection_warpgroups_internal::kStages];
};

// Projects the tokens of kGroups groups on the rows of the basis from `first_rank` on. All threads
// of a block of kThreads call the members in turn.
class ProjectionWarpgroups {
 public:
  static constexpr int kGroups = projection_warpgroups_internal::kGroups;
  static constexpr int kRanks = projection_warpgroups_internal::kRanks;
  static constexpr int kWarpgroupThreads = 4 * kWarpLanes;
  static constexpr int kThreads = kWarpgroupThreads * (kGroups + 1);

  // Whether heads are whole stages.
  static bool Fits(const ShadowKvConfig& config) {
    return config.dtype == DType::kBF16 &&
           config.head_dim % (2 * projection_warpgroups_internal::kPairs) == 0;
  }

  // Of the first `tokens` tokens of `layers`, groups from `first_group` on. The problem's own
  // layers are not looked at.
  __device__ ProjectionWarpgroups(const FactorProblem& problem,
                                  const FactoredLayers& layers,
                                  int64_t tokens,
                                  int64_t first_group,
                                  int32_t first_rank,
                                  ProjectionWarpgroupsShared& shared)
      : problem_(problem),
        layers_(layers),
        tokens_(tokens),
        first_group_(first_group),
        first_rank_(first_rank),
        shared_(shared) {
    if (threadIdx.x == 0) {
      for (int32_t stage = 0; stage < kStages; ++stage) {
        BarrierInit(&shared_.full[stage], kWarpgroupThreads);
        BarrierInit(&shared_.empty[stage], 4 * kGroups);
      }
      BarrierInitFence();
    }
    __syncthreads();
  }

  // Adds the layers up.
  __device__ void Sum() {
    if (Warp() < 4 * kGroups) {
      MultiplyStages();
    } else {
      BringStages();
    }
  }

  // Codes the sums of the groups, one behind the other.
  __device__ void Write(std::byte* section) {
    for (int group = 0; group < kGroups; ++group) {
      const ProjectionGroup of_group = Group(group);
      __syncthreads();  // everyone is done with the basis
      if (of_group.tokens <= 0) return;
      if (Warp() / 4 == group) StoreSums();
      CodeCoefficients(of_group,
                       {.section = section, .tokens = tokens_, .group = first_group_ + group},
                       first_rank_,
                       shared_.results);
    }
  }

 private:
  using BasisStage = projection_warpgroups_internal::BasisStage;
  using KeyStage = projection_warpgroups_internal::KeyStage;
  using Stage = projection_warpgroups_internal::Stage;
  static constexpr int kPairs = projection_warpgroups_internal::kPairs;
  static constexpr int kProductPairs = projection_warpgroups_internal::kProductPairs;
  static constexpr int kProducts = projection_warpgroups_internal::kProducts;
  static constexpr int32_t kStages = projection_warpgroups_internal::kStages;
  static constexpr int kTokens = static_cast<int>(kShadowKvBlockTokens);
  static constexpr int kLaneTokens = 2;

  __device__ static int Warp() { return static_cast<int>(threadIdx.x) / kWarpLanes; }
  __device__ static int ThreadOfWarpgroup() {
    return static_cast<int>(threadIdx.x) % kWarpgroupThreads;
  }
  __device__ int32_t Half() const { return problem_.config.head_dim / 2; }

  __device__ ProjectionGroup Group(int group) const {
    const int64_t first = (first_group_ + group) * kTokens;
    return {.config = &problem_.config,
            .rope = problem_.rope,
            .position = first,
            .tokens = static_cast<int32_t>(min(int64_t{kTokens}, tokens_ - first)),
            .layers = layers_.count};
  }

  using Place = ProjectionPlace<kPairs>;

  __device__ bool Exists(const Place& place) const { return place.layer < layers_.count; }
  __device__ HeadBias BiasOf(const Place& place) const {
    return {.layer = layers_[place.layer].key_bias,
            .column = int64_t{place.head} * problem_.config.head_dim + place.pair};
  }

  // The warpgroup that brings starts copies as far ahead as there is room.
  __device__ void BringStages() {
    RingPlace<kStages> ring;
#pragma unroll 1
    for (Place place; Exists(place); place.Advance(problem_.config)) {
      Stage& stage = shared_.stages[ring.place];
      BarrierWait(&shared_.empty[ring.place], ring.parity ^ 1);
      BringKeys(place, stage.keys);
      BringBasis(place, stage.basis);
      BarrierArriveOnCopies(&shared_.full[ring.place]);
      ring.Next();
    }
  }

  __device__ void MultiplyStages() {
    StageAngles angles;
    RingPlace<kStages> ring;
#pragma unroll 1
    for (Place place; Exists(place); place.Advance(problem_.config)) {
      if (place.head == 0) LoadAngles(place.pair, angles);
      BarrierWait(&shared_.full[ring.place], ring.parity);
      Multiply(shared_.stages[ring.place], angles, BiasOf(place));
      __syncwarp();
      if (threadIdx.x % kWarpLanes == 0) BarrierArrive(&shared_.empty[ring.place]);
      ring.Next();
    }
  }

  // A thread copies the same 16 bytes of every kTurnTokens-th token's low or high elements. Past
  // the last token the last one is read.
  static constexpr int kParts = kPairs / 8;
  static constexpr int kTurnTokens = kWarpgroupThreads / (2 * kParts);
  static constexpr int kTurns = KeyStage::kTokens / kTurnTokens;

  __device__ void BringKeys(const Place& place, KeyStage& stage) {
    const int thread = ThreadOfWarpgroup();
    const int part = thread % kParts;
    const int half = thread / kParts % 2;
    const int first = thread / (2 * kParts);
    if (place.head == 0 && place.pair == 0) {
      const PageTokens tokens(problem_.pages, layers_[place.layer].page_table);
#pragma unroll
      for (int turn = 0; turn < kTurns; ++turn) {
        keys_[turn] = tokens.Keys(Position(first + turn * kTurnTokens));
      }
    }
#pragma unroll
    for (int turn = 0; turn < kTurns; ++turn) {
      const auto* key = reinterpret_cast<const uint16_t*>(keys_[turn].head(place.head));
      CopyAsync16(&stage.tokens[first + turn * kTurnTokens][half * kPairs + 8 * part],
                  key + half * Half() + place.pair + 8 * part);
    }
  }

  // Zeros for rows past the last. A thread has what one product takes of every kTurnRows-th row.
  __device__ void BringBasis(const Place& place, BasisStage& stage) const {
    static_assert(kParts == kProducts);
    constexpr int kTurnRows = kWarpgroupThreads / kProducts;
    const int thread = ThreadOfWarpgroup();
    const int product = thread % kProducts;
    const ShadowKvConfig& config = problem_.config;
    const auto* basis =
        reinterpret_cast<const uint16_t*>(layers_[place.layer].prompt + problem_.basis) +
        place.head * config.head_dim + place.pair + product * kProductPairs;
#pragma unroll
    for (int first = 0; first < kRanks; first += kTurnRows) {
      const int row = first + thread / kProducts;
      if (row >= kRanks) break;
      const bool exists = first_rank_ + row < config.rank;
      const uint16_t* from = exists ? basis + int64_t{first_rank_ + row} * config.width() : basis;
      CopyAsync16(stage.Row(2 * product, row), from, exists ? 16 : 0);
      CopyAsync16(stage.Row(2 * product + 1, row), from + Half(), exists ? 16 : 0);
    }
  }

  // What turns the lane's keys of a stage.
  struct StageAngles {
    float2 cosines[kLaneTokens][kProducts];
    float2 sines[kLaneTokens][kProducts];
  };
  // A product's operands: of numbers rounded to bf16, and of what is left of them.
  struct KeyOperands {
    uint32_t high[4];
    uint32_t low[4];
  };

  // Of a token of the block.
  __device__ int32_t Position(int token) const {
    return static_cast<int32_t>(min(first_group_ * kTokens + token, tokens_ - 1));
  }
  // The lane's tokens of an operand, eight apart.
  __device__ static int LaneToken(int t) { return Warp() * 16 + LaneGroup() + 8 * t; }

  __device__ void LoadAngles(int32_t pair, StageAngles& angles) const {
#pragma unroll
    for (int t = 0; t < kLaneTokens; ++t) {
      const int64_t first = int64_t{Position(LaneToken(t))} * Half() + pair;
      const auto* cosines = reinterpret_cast<const float2*>(problem_.rope.cosines + first);
      const auto* sines = reinterpret_cast<const float2*>(problem_.rope.sines + first);
#pragma unroll
      for (int i = 0; i < kProducts; ++i) {
        angles.cosines[t][i] = cosines[i * (kProductPairs / 2) + LaneInGroup()];
        angles.sines[t][i] = sines[i * (kProductPairs / 2) + LaneInGroup()];
      }
    }
  }

  // Operands of product `i`: keys as the basis factors them. Factored does the same; here it would
  // be a third more instructions of the loop, for addresses of a bias.
  __device__ KeyOperands Turn(const KeyStage& stage,
                              const StageAngles& angles,
                              const HeadBias& bias,
                              int i) const {
    KeyOperands operands;
    const auto split = [&](float2 x, int at) {
      operands.high[at] = PackBf16(x.x, x.y);
      operands.low[at] = RestBf16(x.x, x.y, operands.high[at]);
    };
#pragma unroll
    for (int t = 0; t < kLaneTokens; ++t) {
      const auto* words = reinterpret_cast<const uint32_t*>(stage.tokens[LaneToken(t)]) +
                          i * (kProductPairs / 2) + LaneInGroup();
      const float2 low = make_float2(LowBf16(words[0]), HighBf16(words[0]));
      const float2 high = make_float2(LowBf16(words[kPairs / 2]), HighBf16(words[kPairs / 2]));
      const float2 c = angles.cosines[t][i];
      const float2 s = angles.sines[t][i];
      float2 turned_low = make_float2(low.x * c.x + high.x * s.x, low.y * c.y + high.y * s.y);
      float2 turned_high = make_float2(high.x * c.x - low.x * s.x, high.y * c.y - low.y * s.y);
      if (bias.layer != nullptr) {
        const float* of_pair = bias.layer + bias.column + i * kProductPairs + 2 * LaneInGroup();
        turned_low.x -= of_pair[0];
        turned_low.y -= of_pair[1];
        turned_high.x -= of_pair[Half()];
        turned_high.y -= of_pair[Half() + 1];
      }
      split(turned_low, t);
      split(turned_high, 2 + t);
    }
    return operands;
  }

  // A product's keys are turned while those before it are multiplied.
  __device__ void Multiply(Stage& stage, const StageAngles& angles, const HeadBias& bias) {
    WarpgroupSharedFence();
    HoldRegisters(sums_);
    KeyOperands operands[kProducts];
#pragma unroll
    for (int i = 0; i < kProducts; ++i) {
      operands[i] = Turn(stage.keys, angles, bias, i);
      WarpgroupFence();
      const uint64_t basis = WarpgroupOperand(stage.basis.Row(2 * i, 0), BasisStage::kDepthBytes);
      WarpgroupMultiplyAdd(sums_, operands[i].low, basis);
      WarpgroupMultiplyAdd(sums_, operands[i].high, basis);
      WarpgroupCommit();
    }
    WarpgroupWait();
    HoldRegisters(sums_);
  }

  __device__ void StoreSums() {
    const int token = Warp() % 4 * 16 + LaneGroup();
#pragma unroll
    for (int j = 0; j < kRanks / 8; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        shared_.results.coefficients[token + i / 2 * 8][8 * j + 2 * LaneInGroup() + i % 2] =
            sums_[4 * j + i];
      }
    }
  }

  const FactorProblem& problem_;
  const FactoredLayers& layers_;
  const int64_t tokens_;
  const int64_t first_group_;
  const int32_t first_rank_;
  ProjectionWarpgroupsShared& shared_;
  HeadVectors keys_[kTurns];  // that the thread copies, of the layer that is brought
  float sums_[kRanks / 2] = {};
};

}  // namespace baton::kernels::cuda::shadowkv
