// Clusters of the values of a prompt (kernels/ops/shadowkv_clusters.h).
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/core/carver.h"
#include "kernels/kv_format/shadowkv.h"
#include "kernels/ops/shadowkv_params.h"

namespace baton::kernels::cuda::shadowkv {

struct ClusterScratch {
  float* means = nullptr;         // [kv_heads][clusters][head_dim]
  uint8_t* sample_ids = nullptr;  // [kv_heads][kShadowKvClusterSample]
};
// Takes nothing for a configuration without clusters.
ClusterScratch CarveClusters(const ShadowKvConfig& config, Carver& carver);

// Writes the clusters of all coded tokens and the clusters' mean values, with the bits of the
// host's. Sums run over a cluster's tokens in order, one thread for each element: where all tokens
// are of one cluster that is the time, some 50 ns a token. Nothing without clusters.
void WriteClusters(const ShadowKvEncodeParams& params,
                   const ClusterScratch& scratch,
                   cudaStream_t stream);

}  // namespace baton::kernels::cuda::shadowkv
