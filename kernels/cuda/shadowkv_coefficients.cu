#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/core/dtype.h"
#include "kernels/cuda/allow_shared.h"
#include "kernels/cuda/device_code.h"
#include "kernels/cuda/runtime/device_queue.h"
#include "kernels/cuda/shadowkv_coefficients.cuh"
#include "kernels/cuda/shadowkv_gram.cuh"
#include "kernels/cuda/shadowkv_keys.cuh"
#include "kernels/cuda/shadowkv_projection.cuh"
#include "kernels/cuda/shadowkv_projection_tile.cuh"
#include "kernels/cuda/shadowkv_projection_warpgroups.cuh"
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

// Sections that are written in one launch.
struct Sections {
  CoefficientSection at[kShadowKvMostFactored];
};

// Block (x, y, z) codes coefficients [160 y, 160 y + 160) of groups 2 x and 2 x + 1 of section z,
// in bf16.
__global__ void __launch_bounds__(ProjectionWarpgroups::kThreads, 1)
    ProjectByWarpgroups(const __grid_constant__ FactorProblem problem,
                        const __grid_constant__ Sections sections,
                        int64_t tokens) {
  if constexpr (kWarpgroupCode) {
    extern __shared__ __align__(16) std::byte memory[];
    const CoefficientSection& section = sections.at[blockIdx.z];
    ProjectionWarpgroups projection(problem,
                                    section.layers,
                                    tokens,
                                    int64_t{blockIdx.x} * ProjectionWarpgroups::kGroups,
                                    static_cast<int32_t>(blockIdx.y) * ProjectionWarpgroups::kRanks,
                                    *reinterpret_cast<ProjectionWarpgroupsShared*>(memory));
    projection.Sum();
    projection.Write(section.section);
  }
}

// The same of group x of one section, on devices that don't multiply by warpgroups.
__global__ void __launch_bounds__(kProjectionTileThreads)
    ProjectTile(const __grid_constant__ FactorProblem problem, int64_t tokens, std::byte* section) {
  extern __shared__ __align__(16) std::byte memory[];
  auto& shared = *reinterpret_cast<ProjectionTileShared*>(memory);
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

// Launches for one section at a time.
void ProjectOne(const DeviceQueue& queue,
                const FactorProblem& problem,
                int64_t tokens,
                int64_t groups,
                std::byte* section) {
  const auto grid_of = [&](int32_t ranks) {
    return dim3(static_cast<uint32_t>(groups),
                static_cast<uint32_t>((problem.config.rank + ranks - 1) / ranks));
  };
  const cudaStream_t stream = queue.stream();
  if (problem.config.dtype != DType::kBF16) {
    ProjectPrompt<<<grid_of(kRanks), kProjectThreads, 0, stream>>>(problem, tokens, section);
    return;
  }
  const size_t shared = queue.device().has_hopper_code ? sizeof(ProjectionTileMemory<true>)
                                                       : sizeof(ProjectionTileMemory<false>);
  (void)AllowShared(ProjectTile, shared);  // a refusal shows when the kernel is launched
  ProjectTile<<<grid_of(kProjectionTileRanks), kProjectionTileThreads, shared, stream>>>(
      problem, tokens, section);
}

}  // namespace

void WriteCoefficients(const DeviceQueue& queue,
                       const FactorProblem& problem,
                       int64_t tokens,
                       std::span<const CoefficientSection> sections) {
  const int64_t groups = (tokens + kShadowKvBlockTokens - 1) / kShadowKvBlockTokens;
  if (groups == 0) return;
  if (!queue.device().multiplies_by_warpgroups || !ProjectionWarpgroups::Fits(problem.config)) {
    for (const CoefficientSection& section : sections) {
      FactorProblem one = problem;
      one.layers = section.layers;
      ProjectOne(queue, one, tokens, groups, section.section);
    }
    return;
  }
  using Projection = ProjectionWarpgroups;
  constexpr size_t kShared = sizeof(ProjectionWarpgroupsShared);
  (void)AllowShared(ProjectByWarpgroups, kShared);  // as above
  Sections all = {};
  std::ranges::copy(sections, all.at);
  const dim3 grid(
      static_cast<uint32_t>((groups + Projection::kGroups - 1) / Projection::kGroups),
      static_cast<uint32_t>((problem.config.rank + Projection::kRanks - 1) / Projection::kRanks),
      static_cast<uint32_t>(sections.size()));
  ProjectByWarpgroups<<<grid, Projection::kThreads, kShared, queue.stream()>>>(
      problem, all, tokens);
}

}  // namespace baton::kernels::cuda::shadowkv
