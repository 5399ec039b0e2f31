#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/core/carver.h"
#include "kernels/cuda/shadowkv_assign.cuh"
#include "kernels/cuda/shadowkv_clusters.cuh"
#include "kernels/cuda/shadowkv_coding.cuh"
#include "kernels/cuda/shadowkv_keys.cuh"
#include "kernels/kv_format/shadowkv.h"
#include "kernels/ops/shadowkv_clusters.h"
#include "kernels/ops/shadowkv_params.h"

namespace baton::kernels::cuda::shadowkv {
namespace {

constexpr int kThreads = kAssignThreads;
constexpr int kWarps = kThreads / 32;
static_assert(kMaxHeadDim <= kThreads);

// Some of the coded tokens, evenly spread, or all of them, with their clusters.
struct ClusterArgs {
  ShadowKvEncodeParams params;
  ClusterScratch scratch;
  int64_t count = 0;
  uint8_t* ids = nullptr;  // [kv_heads][id_stride]
  int64_t id_stride = 0;

  __device__ const ShadowKvConfig& config() const { return params.layout.config; }
  // The value of the index-th of the tokens.
  __device__ const std::byte* Value(int32_t head, int64_t index) const {
    const int64_t token = index * params.layout.coded.tokens / count;
    return PageTokens(params.pages, params.page_table)
        .Values(static_cast<int32_t>(token))
        .head(head);
  }
  __device__ float* Mean(int32_t head, int32_t cluster) const {
    return scratch.means + (int64_t{head} * config().value_clusters + cluster) * config().head_dim;
  }
};

// Block (x, y) starts cluster x of head y at one of the tokens, evenly spread.
__global__ void __launch_bounds__(kThreads) StartMeans(const __grid_constant__ ClusterArgs args) {
  const auto cluster = static_cast<int32_t>(blockIdx.x);
  const auto head = static_cast<int32_t>(blockIdx.y);
  const auto element = static_cast<int32_t>(threadIdx.x);
  if (element < args.config().head_dim) {
    const std::byte* value = args.Value(head, cluster * args.count / args.config().value_clusters);
    args.Mean(head, cluster)[element] = LoadElement(value, args.config().dtype, element);
  }
}

// Block (x, y) assigns tokens [32 x, 32 x + 32) of head y.
__global__ void __launch_bounds__(kThreads) Assign(const __grid_constant__ ClusterArgs args) {
  __shared__ AssignShared shared;
  const auto head = static_cast<int32_t>(blockIdx.y);
  const int64_t first = int64_t{blockIdx.x} * kAssignTokens;
  const ShadowKvConfig& config = args.config();
  AssignTokens(
      {.head_dim = config.head_dim,
       .clusters = config.value_clusters,
       .tokens = static_cast<int32_t>(min(int64_t{kAssignTokens}, args.count - first)),
       .dtype = config.dtype},
      [&](int32_t token) { return args.Value(head, first + token); },
      [&](int32_t cluster, int32_t element) { return args.Mean(head, cluster)[element]; },
      args.ids + head * args.id_stride + first,
      shared);
}

// Lists the values of those of kThreads tokens from `first` on that are in the cluster, in order.
// Returns how many.
// All threads of the block call it; it waits until the list before was read.
__device__ int32_t ListMembers(const ClusterArgs& args,
                               const uint8_t* ids,
                               int64_t first,
                               const std::byte** list) {
  __shared__ int32_t warp_counts[kWarps];
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int64_t index = first + threadIdx.x;
  const bool member = index < args.count && ids[index] == blockIdx.x;
  const uint32_t members = __ballot_sync(0xffffffffu, member);
  if (lane == 0) warp_counts[warp] = __popc(members);
  __syncthreads();
  int32_t place = __popc(members & ((1u << lane) - 1u));
  int32_t total = 0;
  for (int w = 0; w < kWarps; ++w) {
    place += w < warp ? warp_counts[w] : 0;
    total += warp_counts[w];
  }
  if (member) list[place] = args.Value(static_cast<int32_t>(blockIdx.y), index);
  __syncthreads();
  return total;
}

// Block (x, y) moves the mean of cluster x of head y to that of its tokens; without any it stays.
// `stores`: writes it to the prompt section too.
__global__ void __launch_bounds__(kThreads)
    MoveMeans(const __grid_constant__ ClusterArgs args, bool stores) {
  __shared__ const std::byte* list[kThreads];
  const auto cluster = static_cast<int32_t>(blockIdx.x);
  const auto head = static_cast<int32_t>(blockIdx.y);
  const auto element = static_cast<int32_t>(threadIdx.x);
  const ShadowKvConfig& config = args.config();
  const bool has_element = element < config.head_dim;
  const uint8_t* ids = args.ids + head * args.id_stride;
  float sum = 0.0f;
  int64_t members = 0;
  for (int64_t first = 0; first < args.count; first += kThreads) {
    const int32_t listed = ListMembers(args, ids, first, list);
    members += listed;
    if (!has_element) continue;
#pragma unroll 4
    for (int32_t i = 0; i < listed; ++i) {
      sum += LoadElement(list[i], config.dtype, element);
    }
  }
  if (!has_element) return;
  float* mean = args.Mean(head, cluster) + element;
  if (members > 0) *mean = sum / static_cast<float>(members);
  if (stores) {
    const int64_t index = int64_t{head} * config.value_clusters + cluster;
    StoreElement(*mean,
                 config.dtype,
                 index * config.head_dim + element,
                 args.params.prompt + args.params.layout.cluster_values);
  }
}

void LaunchRound(const ClusterArgs& args, bool stores, cudaStream_t stream) {
  const ShadowKvConfig& config = args.params.layout.config;
  const auto heads = static_cast<uint32_t>(config.kv_heads);
  const auto tiles = static_cast<uint32_t>((args.count + kAssignTokens - 1) / kAssignTokens);
  const auto clusters = static_cast<uint32_t>(config.value_clusters);
  Assign<<<dim3(tiles, heads), kThreads, 0, stream>>>(args);
  MoveMeans<<<dim3(clusters, heads), kThreads, 0, stream>>>(args, stores);
}

}  // namespace

ClusterScratch CarveClusters(const ShadowKvConfig& config, Carver& carver) {
  const int64_t heads = config.value_clusters > 0 ? config.kv_heads : 0;
  ClusterScratch scratch;
  scratch.means = carver.Take<float>(heads * config.value_clusters * config.head_dim);
  scratch.sample_ids = carver.Take<uint8_t>(heads * kShadowKvClusterSample);
  return scratch;
}

void WriteClusters(const ShadowKvEncodeParams& params,
                   const ClusterScratch& scratch,
                   cudaStream_t stream) {
  const ShadowKvPromptLayout& layout = params.layout;
  const int64_t tokens = layout.coded.tokens;
  if (layout.config.value_clusters == 0 || tokens == 0) {
    return;
  }
  const ClusterArgs sample = {.params = params,
                              .scratch = scratch,
                              .count = std::min(tokens, kShadowKvClusterSample),
                              .ids = scratch.sample_ids,
                              .id_stride = kShadowKvClusterSample};
  StartMeans<<<dim3(static_cast<uint32_t>(layout.config.value_clusters),
                    static_cast<uint32_t>(layout.config.kv_heads)),
               kThreads,
               0,
               stream>>>(sample);
  for (int round = 0; round < kShadowKvClusterRounds; ++round) {
    LaunchRound(sample, /*stores=*/false, stream);
  }
  ClusterArgs all = sample;
  all.count = tokens;
  all.ids =
      reinterpret_cast<uint8_t*>(params.prompt + layout.coded_begin + layout.coded.cluster_ids);
  all.id_stride = tokens;
  LaunchRound(all, /*stores=*/true, stream);
}

}  // namespace baton::kernels::cuda::shadowkv
