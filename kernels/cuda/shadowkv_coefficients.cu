#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "kernels/core/dtype.h"
#include "kernels/cuda/shadowkv_coefficients.cuh"
#include "kernels/cuda/shadowkv_gram.cuh"
#include "kernels/cuda/shadowkv_keys.cuh"
#include "kernels/cuda/shadowkv_projection.cuh"
#include "kernels/cuda/shadowkv_projection_tile.cuh"
#include "kernels/kv_format/shadowkv.h"
#include "kernels/ops/shadowkv_params.h"

namespace baton::kernels::cuda::shadowkv {
namespace {

// Rows of the basis that a block of ProjectPrompt multiplies by.
constexpr int kRanks = 64;

__device__ ProjectionGroup GroupOf(const FactorProblem& problem, int64_t tokens) {
  const int64_t first = blockIdx.x * kShadowKvBlockTokens;
  return {.config = &problem.config,
          .rope = problem.rope,
          .position = first,
          .tokens = static_cast<int32_t>(min(kShadowKvBlockTokens, tokens - first)),
          .layers = problem.layers.count};
}

// Block (x, y) codes coefficients [160 y, 160 y + 160) of group x, in bf16.
__global__ void __launch_bounds__(kProjectThreads, 2)
    ProjectTile(const __grid_constant__ FactorProblem problem, int64_t tokens, std::byte* section) {
  __shared__ ProjectionTileShared shared;
  const ProjectionGroup group = GroupOf(problem, tokens);
  const auto first_rank = static_cast<int32_t>(blockIdx.y) * kProjectionTileRanks;
  ProjectionTile tile(problem, group, first_rank, shared);
  tile.Sum();
  tile.Write({.section = section, .tokens = tokens, .group = blockIdx.x});
}

// The same of coefficients [64 y, 64 y + 64) in fp32.
__global__ void __launch_bounds__(kProjectThreads)
    ProjectPrompt(const __grid_constant__ FactorProblem problem,
                  int64_t tokens,
                  std::byte* section) {
  __shared__ ProjectionShared<kRanks> shared;
  const ProjectionGroup group = GroupOf(problem, tokens);
  const auto layer_of = [&](int64_t index) -> ProjectedLayer {
    const ShadowKvJointLayer layer = problem.layers[index];
    return {.basis = layer.prompt + problem.basis, .key_bias = layer.key_bias};
  };
  const auto keys_of = [&](int64_t index, int32_t token) {
    return PageTokens(problem.pages, problem.layers[index].page_table)
        .Keys(static_cast<int32_t>(group.position) + token);
  };
  WriteCoefficients<kRanks>(group,
                            {.section = section, .tokens = tokens, .group = blockIdx.x},
                            static_cast<int32_t>(blockIdx.y) * kRanks,
                            layer_of,
                            keys_of,
                            shared);
}

}  // namespace

void WriteCoefficients(const FactorProblem& problem,
                       int64_t tokens,
                       std::byte* section,
                       cudaStream_t stream) {
  const int64_t groups = (tokens + kShadowKvBlockTokens - 1) / kShadowKvBlockTokens;
  if (groups == 0) return;
  const bool tiles = problem.config.dtype == DType::kBF16;
  const int32_t ranks = tiles ? kProjectionTileRanks : kRanks;
  const dim3 grid(static_cast<uint32_t>(groups),
                  static_cast<uint32_t>((problem.config.rank + ranks - 1) / ranks));
  const auto kernel = tiles ? ProjectTile : ProjectPrompt;
  kernel<<<grid, kProjectThreads, 0, stream>>>(problem, tokens, section);
}

}  // namespace baton::kernels::cuda::shadowkv
