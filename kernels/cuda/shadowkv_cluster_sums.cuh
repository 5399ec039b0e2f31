// The share of value clusters in a step: log(sum exp(logit)) over the coded tokens of each cluster
// that are neither static nor selected.
//
// Weights are relative to the largest logit among those tokens, so at most 1, and are summed as
// integers of 2^-40: sums do not depend on the order of the additions, and so neither on how many
// blocks share them. In a block the upper and lower 20 bits are summed apart.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/paged_attention_tile.cuh"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/shadowkv_device.cuh"
#include "kernels/cuda/shadowkv_score.cuh"
#include "kernels/cuda/warp.cuh"
#include "kernels/kv_format/shadowkv.h"

namespace baton::kernels::cuda::shadowkv {

inline constexpr int32_t kHalfBits = 20;
inline constexpr float kWeightOne = 0x1p40f;

// Sums of a block, whose tokens are at most 2^11: of 2^20 each they fit.
template <int kColumnTiles>
struct ClusterTotals {
  uint32_t high[paged::kColumns * kColumnTiles][kShadowKvMaxClusters];
  uint32_t low[paged::kColumns * kColumnTiles][kShadowKvMaxClusters];
};
inline constexpr int32_t kMaxClusterTokens = 1 << 11;

// Adds the weight of one token under one query head.
__device__ inline void AddWeight(float logit, float max, uint32_t& high, uint32_t& low) {
  const float weight = fminf(Exp2((logit - max) * kLog2E), 1.0f);
  const auto units = static_cast<unsigned long long>(weight * kWeightOne);
  atomicAdd(&high, static_cast<uint32_t>(units >> kHalfBits));
  atomicAdd(&low, static_cast<uint32_t>(units & ((1u << kHalfBits) - 1u)));
}

// What ClusterTotals gets of 16 tokens, of which some count. `maxima`, of the group's query heads:
// the largest logits of tokens that count.
template <int kHeadDim, int kColumnTiles>
__device__ inline void AddClusterTile(const ScoreTask& task,
                                      const TokenPlace (&tokens)[2],
                                      const bool (&counts)[2],
                                      const CodedQueries<kHeadDim, kColumnTiles>& queries,
                                      float scale,
                                      const float* maxima,
                                      int32_t group,
                                      ClusterTotals<kColumnTiles>& totals) {
  float scores[kColumnTiles][4];
  ScoreCodedKeys(task, tokens, queries, scores);
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    if (!counts[row]) continue;
    const auto* ids =
        reinterpret_cast<const uint8_t*>(task.cluster_ids.Chunk(task.chunks, tokens[row].chunk));
    const int32_t cluster = ids[tokens[row].token];
#pragma unroll
    for (int n = 0; n < kColumnTiles; ++n) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const int32_t column = paged::kColumns * n + 2 * LaneInGroup() + c;
        if (column >= group) continue;
        AddWeight(scores[n][2 * row + c] * scale,
                  maxima[column],
                  totals.high[column][cluster],
                  totals.low[column][cluster]);
      }
    }
  }
}

// Adds a block's totals to sums, [group][stride]. All threads, after all have added.
template <int kColumnTiles>
__device__ inline void FlushClusters(const ClusterTotals<kColumnTiles>& totals,
                                     int32_t group,
                                     int32_t clusters,
                                     unsigned long long* sums,
                                     int64_t stride) {
  for (int32_t i = threadIdx.x; i < group * clusters; i += blockDim.x) {
    const int32_t column = i / clusters;
    const int32_t cluster = i % clusters;
    const unsigned long long total =
        (static_cast<unsigned long long>(totals.high[column][cluster]) << kHalfBits) +
        totals.low[column][cluster];
    if (total != 0) atomicAdd(sums + column * stride + cluster, total);
  }
}

// The logit of a cluster from its sum.
__device__ inline float ClusterLogit(unsigned long long sum, float max) {
  return sum == 0 ? -INFINITY : max + logf(static_cast<float>(sum) / kWeightOne);
}

}  // namespace baton::kernels::cuda::shadowkv
