#include "kernels/ops/shadowkv_clusters.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/core/carver.h"
#include "kernels/core/dtype.h"
#include "kernels/core/half.h"
#include "kernels/kv_format/dense.h"
#include "kernels/kv_format/shadowkv.h"
#include "kernels/ops/shadowkv_host.h"
#include "kernels/ops/shadowkv_params.h"
#include "kernels/ops/shadowkv_view.h"

namespace baton::kernels {
namespace {

float Element(const std::byte* data, DType dtype, int64_t index) {
  return dtype == DType::kF32 ? reinterpret_cast<const float*>(data)[index]
                              : BF16ToF32(reinterpret_cast<const uint16_t*>(data)[index]);
}

// Widens one token's value of a head.
void LoadValue(const ShadowKvEncodeParams& params, int64_t position, int32_t head, float* out) {
  const DensePageLayout& layout = params.pages.layout;
  const PageSlot at = LocatePromptToken(params.pages, params.page_table, position);
  const std::byte* value = at.page + layout.value_offset(head, at.slot);
  for (int64_t i = 0; i < layout.head_dim; ++i) {
    out[i] = Element(value, layout.dtype, i);
  }
}

// Lays the means out for NearestCluster.
void PrepareMeans(const ShadowKvConfig& config, const ShadowKvClusterScratch& scratch) {
  const int64_t clusters = config.value_clusters;
  std::fill(scratch.lengths, scratch.lengths + clusters, 0.0f);
  for (int64_t i = 0; i < config.head_dim; ++i) {
    for (int64_t c = 0; c < clusters; ++c) {
      const float x = scratch.means[c * config.head_dim + i];
      scratch.columns[i * clusters + c] = x;
      scratch.lengths[c] += x * x;
    }
  }
}

// The least |mean|^2 - 2 mean . value, which orders clusters as their squared distance does.
uint8_t NearestCluster(const ShadowKvConfig& config,
                       const float* value,
                       const ShadowKvClusterScratch& scratch) {
  const int64_t clusters = config.value_clusters;
  float* distances = scratch.distances;
  std::copy(scratch.lengths, scratch.lengths + clusters, distances);
  for (int64_t i = 0; i < config.head_dim; ++i) {
    const float factor = -2.0f * value[i];
    const float* column = scratch.columns + i * clusters;
    for (int64_t c = 0; c < clusters; ++c) {
      distances[c] += factor * column[c];
    }
  }
  return static_cast<uint8_t>(std::min_element(distances, distances + clusters) - distances);
}

void BeginSums(const ShadowKvConfig& config, const ShadowKvClusterScratch& scratch) {
  const int64_t clusters = config.value_clusters;
  std::fill(scratch.sums, scratch.sums + clusters * config.head_dim, 0.0f);
  std::fill(scratch.counts, scratch.counts + clusters, 0);
}

void AddToSums(const ShadowKvConfig& config,
               uint8_t cluster,
               const float* value,
               const ShadowKvClusterScratch& scratch) {
  float* sum = scratch.sums + cluster * int64_t{config.head_dim};
  for (int64_t i = 0; i < config.head_dim; ++i) {
    sum[i] += value[i];
  }
  ++scratch.counts[cluster];
}

// Moves every mean to that of its tokens; a cluster without tokens stays where it is.
void MoveMeans(const ShadowKvConfig& config, const ShadowKvClusterScratch& scratch) {
  for (int64_t c = 0; c < config.value_clusters; ++c) {
    const int64_t first = c * config.head_dim;
    for (int64_t i = first; scratch.counts[c] > 0 && i < first + config.head_dim; ++i) {
      scratch.means[i] = scratch.sums[i] / static_cast<float>(scratch.counts[c]);
    }
  }
}

// Fits the means to a sample of the coded tokens' values.
void FitMeans(const ShadowKvEncodeParams& params,
              int32_t head,
              const ShadowKvClusterScratch& scratch) {
  const ShadowKvConfig& config = params.layout.config;
  const int64_t dim = config.head_dim;
  const int64_t tokens = params.layout.coded.tokens;
  const int64_t count = std::min(tokens, kShadowKvClusterSample);
  for (int64_t s = 0; s < count; ++s) {
    LoadValue(params, s * tokens / count, head, scratch.sample + s * dim);
  }
  for (int64_t c = 0; c < config.value_clusters; ++c) {
    const float* start = scratch.sample + c * count / config.value_clusters * dim;
    std::copy(start, start + dim, scratch.means + c * dim);
  }
  for (int round = 0; round < kShadowKvClusterRounds; ++round) {
    PrepareMeans(config, scratch);
    BeginSums(config, scratch);
    for (int64_t s = 0; s < count; ++s) {
      const float* value = scratch.sample + s * dim;
      AddToSums(config, NearestCluster(config, value, scratch), value, scratch);
    }
    MoveMeans(config, scratch);
  }
}

void StoreMeans(const ShadowKvConfig& config, const float* means, std::byte* target) {
  for (int64_t i = 0; i < int64_t{config.value_clusters} * config.head_dim; ++i) {
    if (config.dtype == DType::kF32) {
      reinterpret_cast<float*>(target)[i] = means[i];
    } else {
      reinterpret_cast<uint16_t*>(target)[i] = F32ToBF16(means[i]);
    }
  }
}

}  // namespace

ShadowKvClusterScratch CarveShadowKvClusters(const ShadowKvConfig& config, Carver& carver) {
  const int64_t clusters = config.value_clusters;
  const int64_t dim = clusters > 0 ? config.head_dim : 0;
  ShadowKvClusterScratch scratch;
  scratch.sample = carver.Take<float>(kShadowKvClusterSample * dim);
  scratch.means = carver.Take<float>(clusters * dim);
  scratch.columns = carver.Take<float>(clusters * dim);
  scratch.lengths = carver.Take<float>(clusters);
  scratch.distances = carver.Take<float>(clusters);
  scratch.sums = carver.Take<float>(clusters * dim);
  scratch.counts = carver.Take<int64_t>(clusters);
  scratch.value = carver.Take<float>(dim);
  return scratch;
}

void WriteShadowKvClusters(const ShadowKvEncodeParams& params,
                           int32_t head,
                           const ShadowKvClusterScratch& scratch) {
  const ShadowKvPromptLayout& layout = params.layout;
  const ShadowKvConfig& config = layout.config;
  if (config.value_clusters == 0 || layout.coded.tokens == 0) {
    return;
  }
  FitMeans(params, head, scratch);
  auto* ids =
      reinterpret_cast<uint8_t*>(params.prompt + layout.coded_begin + layout.coded.cluster_ids) +
      head * layout.coded.tokens;
  PrepareMeans(config, scratch);
  BeginSums(config, scratch);
  for (int64_t token = 0; token < layout.coded.tokens; ++token) {
    LoadValue(params, token, head, scratch.value);
    ids[token] = NearestCluster(config, scratch.value, scratch);
    AddToSums(config, ids[token], scratch.value, scratch);
  }
  MoveMeans(config, scratch);
  StoreMeans(config,
             scratch.means,
             params.prompt + layout.cluster_values +
                 static_cast<size_t>(head * config.value_clusters) * config.vector_bytes());
}

void AssignShadowKvBlock(const ShadowKvSequenceView& view,
                         const float* values,
                         std::byte* block,
                         const ShadowKvClusterScratch& scratch) {
  const ShadowKvConfig& config = view.config();
  if (config.value_clusters == 0) {
    return;
  }
  const ShadowKvCodedLayout& layout = view.tail().block;
  auto* ids = reinterpret_cast<uint8_t*>(block + layout.cluster_ids);
  for (int64_t head = 0; head < config.kv_heads; ++head) {
    for (int64_t i = 0; i < int64_t{config.value_clusters} * config.head_dim; ++i) {
      scratch.means[i] = Element(view.ClusterValues(head), config.dtype, i);
    }
    PrepareMeans(config, scratch);
    for (int64_t t = 0; t < layout.tokens; ++t) {
      ids[head * layout.tokens + t] =
          NearestCluster(config, values + t * config.width() + head * config.head_dim, scratch);
    }
  }
}

}  // namespace baton::kernels
