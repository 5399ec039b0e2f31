// Clusters of a head's values in format `shadowkv`: what stands for the values of the tokens that a
// step does not select. The same on every back end on host memory, to the bit.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/core/carver.h"
#include "kernels/kv_format/shadowkv.h"
#include "kernels/ops/shadowkv_params.h"
#include "kernels/ops/shadowkv_view.h"

namespace baton::kernels {

// Most tokens that the clusters are fitted to, evenly spread over the coded prompt, and rounds of
// fitting: they keep the fit cheaper than the assignment of a long prompt's tokens.
inline constexpr int64_t kShadowKvClusterSample = 1024;
inline constexpr int kShadowKvClusterRounds = 4;

// Scratch of one head.
struct ShadowKvClusterScratch {
  float* sample = nullptr;     // [kShadowKvClusterSample, head_dim]
  float* means = nullptr;      // [clusters, head_dim]
  float* columns = nullptr;    // [head_dim, clusters]: the means, transposed
  float* lengths = nullptr;    // [clusters]: squared
  float* distances = nullptr;  // [clusters]
  float* sums = nullptr;       // [clusters, head_dim]
  int64_t* counts = nullptr;   // [clusters]
  float* value = nullptr;      // [head_dim]
};
// Takes nothing for a configuration without clusters.
ShadowKvClusterScratch CarveShadowKvClusters(const ShadowKvConfig& config, Carver& carver);

// Fits one head's clusters to its coded values by k-means (Lloyd's rounds from evenly spread
// tokens), assigns every coded token to the nearest mean, ties to the lower cluster, and writes
// the clusters of all tokens and the mean value of each cluster's tokens. Nothing without clusters.
void WriteShadowKvClusters(const ShadowKvEncodeParams& params,
                           int32_t head,
                           const ShadowKvClusterScratch& scratch);

// Assigns the tokens of one coded block of the tail to the prompt's clusters. values, [64, kv_heads
// * head_dim], are the block's. Nothing without clusters.
void AssignShadowKvBlock(const ShadowKvSequenceView& view,
                         const float* values,
                         std::byte* block,
                         const ShadowKvClusterScratch& scratch);

}  // namespace baton::kernels
