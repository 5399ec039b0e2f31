// The cluster that a token's value belongs to, by the arithmetic of kernels/ops/shadowkv_clusters.h
// to the bit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>

#include "kernels/core/dtype.h"
#include "kernels/cuda/shadowkv_keys.cuh"

namespace baton::kernels::cuda::shadowkv {

// Threads of a block that assigns, and tokens that it takes at a time.
inline constexpr int kAssignThreads = 256;
inline constexpr int kAssignTokens = 32;

struct AssignShared {
  // 32 elements of 32 clusters' means, and of the tokens' values times -2.
  float means[32][33];
  alignas(16) float factors[32][kAssignTokens + 4];
  const std::byte* values[kAssignTokens];
};

// One head's clusters, and some of its tokens.
struct AssignTask {
  int32_t head_dim = 0;
  int32_t clusters = 0;
  int32_t tokens = 0;          // at most kAssignTokens
  DType dtype = DType::kBF16;  // of values
};

namespace assign_internal {

// Each lane of the block's warps has a cluster and four tokens of its own.
inline constexpr int kWarpTokens = kAssignTokens / (kAssignThreads / 32);
static_assert(kWarpTokens == 4);

template <typename MeanOf>
__device__ inline void StageMeans(const AssignTask& task,
                                  int first_cluster,
                                  int first,
                                  const MeanOf& mean_of,
                                  AssignShared& shared) {
  for (int at = static_cast<int>(threadIdx.x); at < 32 * 32; at += kAssignThreads) {
    const int cluster = first_cluster + at / 32;
    const int element = first + at % 32;
    const bool exists = cluster < task.clusters && element < task.head_dim;
    shared.means[at % 32][at / 32] = exists ? mean_of(cluster, element) : 0.0f;
  }
}

__device__ inline void StageValues(const AssignTask& task, int first, AssignShared& shared) {
  for (int at = static_cast<int>(threadIdx.x); at < 32 * kAssignTokens; at += kAssignThreads) {
    const int token = at / 32;
    const int element = first + at % 32;
    const bool exists = token < task.tokens && element < task.head_dim;
    shared.factors[at % 32][token] =
        exists ? -2.0f * LoadElement(shared.values[token], task.dtype, element) : 0.0f;
  }
}

// The squared length of the mean of the lane's cluster.
template <typename MeanOf>
__device__ inline float SquaredLength(const AssignTask& task,
                                      int first_cluster,
                                      const MeanOf& mean_of,
                                      AssignShared& shared) {
  float length = 0.0f;
  for (int first = 0; first < task.head_dim; first += 32) {
    __syncthreads();
    StageMeans(task, first_cluster, first, mean_of, shared);
    __syncthreads();
    for (int i = 0; i < min(32, task.head_dim - first); ++i) {
      const float x = shared.means[i][threadIdx.x % 32];
      length += x * x;
    }
  }
  return length;
}

// |mean|^2 - 2 mean . value of the lane's cluster and each of its tokens.
template <typename MeanOf>
__device__ inline void Distances(const AssignTask& task,
                                 int first_cluster,
                                 const MeanOf& mean_of,
                                 AssignShared& shared,
                                 float (&distances)[kWarpTokens]) {
  const float length = SquaredLength(task, first_cluster, mean_of, shared);
  for (float& distance : distances) distance = length;
  const int first_token = static_cast<int>(threadIdx.x) / 32 * kWarpTokens;
  for (int first = 0; first < task.head_dim; first += 32) {
    __syncthreads();
    StageMeans(task, first_cluster, first, mean_of, shared);
    StageValues(task, first, shared);
    __syncthreads();
    for (int i = 0; i < min(32, task.head_dim - first); ++i) {
      const float mean = shared.means[i][threadIdx.x % 32];
      const float4 four = *reinterpret_cast<const float4*>(&shared.factors[i][first_token]);
      distances[0] += four.x * mean;
      distances[1] += four.y * mean;
      distances[2] += four.z * mean;
      distances[3] += four.w * mean;
    }
  }
}

struct Nearest {
  float distance = std::numeric_limits<float>::infinity();
  int cluster = 0;
};

// The least over the warp, of equal ones the lowest cluster.
__device__ inline Nearest LeastOfWarp(Nearest nearest) {
  for (int step = 16; step > 0; step /= 2) {
    const float distance = __shfl_xor_sync(0xffffffffu, nearest.distance, step);
    const int cluster = __shfl_xor_sync(0xffffffffu, nearest.cluster, step);
    if (distance < nearest.distance ||
        (distance == nearest.distance && cluster < nearest.cluster)) {
      nearest.distance = distance;
      nearest.cluster = cluster;
    }
  }
  return nearest;
}

}  // namespace assign_internal

// ids[t] = the cluster whose mean is nearest to the value of token t, ties to the lower cluster.
// value_of(token) is its vector, mean_of(cluster, element) a number. All threads of a block of
// kAssignThreads call it.
template <typename ValueOf, typename MeanOf>
__device__ inline void AssignTokens(const AssignTask& task,
                                    const ValueOf& value_of,
                                    const MeanOf& mean_of,
                                    uint8_t* ids,
                                    AssignShared& shared) {
  using assign_internal::kWarpTokens;
  using assign_internal::Nearest;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const auto token = static_cast<int32_t>(threadIdx.x);
  __syncthreads();  // whoever read the values before is done; Distances waits for these
  if (token < task.tokens) shared.values[token] = value_of(token);
  Nearest nearest[kWarpTokens];
  for (int first = 0; first < task.clusters; first += 32) {
    float distances[kWarpTokens];
    assign_internal::Distances(task, first, mean_of, shared, distances);
#pragma unroll
    for (int i = 0; i < kWarpTokens; ++i) {
      Nearest mine;
      mine.cluster = first + lane;
      if (first + lane < task.clusters) mine.distance = distances[i];
      const Nearest least = assign_internal::LeastOfWarp(mine);
      if (least.distance < nearest[i].distance) nearest[i] = least;
    }
  }
  const int first_token = static_cast<int>(threadIdx.x) / 32 * kWarpTokens;
#pragma unroll
  for (int i = 0; i < kWarpTokens; ++i) {
    if (lane == 0 && first_token + i < task.tokens) {
      ids[first_token + i] = static_cast<uint8_t>(nearest[i].cluster);
    }
  }
}

}  // namespace baton::kernels::cuda::shadowkv
