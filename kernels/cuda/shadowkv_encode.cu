// Codes a prompt. Nearly all of the time is the factorization's (dominant_subspace.h,
// shadowkv_gram.cuh); the rest reads keys and values twice and writes the section once.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"

#include "kernels/core/carver.h"
#include "kernels/core/exec_context.h"
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/dominant_subspace.h"
#include "kernels/cuda/runtime/cuda_status.h"
#include "kernels/cuda/runtime/device_queue.h"
#include "kernels/cuda/shadowkv_clusters.cuh"
#include "kernels/cuda/shadowkv_coding.cuh"
#include "kernels/cuda/shadowkv_coefficients.cuh"
#include "kernels/cuda/shadowkv_encode_checks.h"
#include "kernels/cuda/shadowkv_exact.cuh"
#include "kernels/cuda/shadowkv_factor.cuh"
#include "kernels/cuda/shadowkv_keys.cuh"
#include "kernels/kv_format/shadowkv.h"
#include "kernels/ops/param_checker.h"
#include "kernels/ops/shadowkv_params.h"
#include "kernels/ops/validate.h"

namespace baton::kernels::cuda {
namespace shadowkv {
namespace {

constexpr int kCodeThreads = 128;

struct EncodeScratch {
  FactorScratch factor;           // without joint coefficients
  float* chunk_scores = nullptr;  // [kv_heads][chunks]
  ClusterScratch clusters;
};

EncodeScratch CarveEncode(const ShadowKvPromptLayout& layout, Carver& carver) {
  const ShadowKvConfig& config = layout.config;
  EncodeScratch scratch;
  if (!config.joint) {
    scratch.factor =
        CarveFactor(config.dtype, config.width(), config.rank, layout.prompt_tokens, carver);
  }
  scratch.chunk_scores = carver.Take<float>(config.kv_heads * layout.coded.chunks);
  scratch.clusters = CarveClusters(config, carver);
  return scratch;
}

// What a thread of a block codes: each group of lanes of row y of blocks has a unit of head y.
struct CodingWork {
  CodedTarget target;
  CodingUnit unit;
  PageTokens tokens;

  __device__ CodingWork(const ShadowKvEncodeParams& params, float* chunk_scores)
      : target{.config = &params.layout.config,
               .layout = &params.layout.coded,
               .section = params.prompt + params.layout.coded_begin,
               .value_section = params.layout.config.values_apart
                                    ? params.values
                                    : params.prompt + params.layout.coded_begin,
               .chunk_scores = chunk_scores},
        unit(target,
             static_cast<int32_t>(blockIdx.y),
             (int64_t{blockIdx.x} * kCodeThreads + threadIdx.x) /
                 VectorLanes(params.layout.config.head_dim)),
        tokens(params.pages, params.page_table) {}
};

template <int kChunk>
__global__ void __launch_bounds__(kCodeThreads)
    CodePromptChunks(const __grid_constant__ ShadowKvEncodeParams params, float* chunk_scores) {
  const CodingWork work(params, chunk_scores);
  CodeChunks<kChunk, true>(work.target, work.unit, work.tokens);
}

__global__ void __launch_bounds__(kCodeThreads)
    CodePromptVectors(const __grid_constant__ ShadowKvEncodeParams params) {
  const CodingWork work(params, nullptr);
  CodeVectors(work.target, work.unit, work.tokens);
}

void CodeTokens(const ShadowKvEncodeParams& params, float* chunk_scores, cudaStream_t stream) {
  const ShadowKvConfig& config = params.layout.config;
  const int64_t units = (params.layout.coded.tokens + kUnitTokens - 1) / kUnitTokens;
  const int64_t threads = units * VectorLanes(config.head_dim);
  if (threads == 0) return;
  const dim3 grid(static_cast<uint32_t>((threads + kCodeThreads - 1) / kCodeThreads),
                  static_cast<uint32_t>(config.kv_heads));
  const auto code_chunks = config.chunk_tokens == 1   ? CodePromptChunks<1>
                           : config.chunk_tokens == 2 ? CodePromptChunks<2>
                           : config.chunk_tokens == 4 ? CodePromptChunks<4>
                                                      : CodePromptChunks<8>;
  code_chunks<<<grid, kCodeThreads, 0, stream>>>(params, chunk_scores);
  CodePromptVectors<<<grid, kCodeThreads, 0, stream>>>(params);
}

absl::Status Check(const ShadowKvEncodeParams& params) {
  if (absl::Status status = Validate(params); !status.ok()) {
    return status;
  }
  ParamChecker check("shadowkv_encode");
  CheckHeads(params.layout.config, check);
  CheckRopeTables(params.rope, check);
  CheckAligned("pages.base", params.pages.base, 16, check);
  CheckAligned("prompt", params.prompt, 64, check);
  if (params.layout.config.values_apart) CheckAligned("values", params.values, 64, check);
  return check.status();
}

FactorProblem ProblemOf(const ShadowKvEncodeParams& params) {
  return {.config = params.layout.config,
          .pages = params.pages,
          .rope = params.rope,
          .layers = {.one = {.page_table = params.page_table,
                             .key_bias = params.key_bias,
                             .prompt = params.prompt}},
          .tokens = params.layout.prompt_tokens,
          .basis = params.layout.basis};
}

}  // namespace
}  // namespace shadowkv

size_t ShadowKvEncodeWorkspaceBytes(const ShadowKvWorkspaceSizes& sizes) {
  ShadowKvConfig config = sizes.config;
  const int64_t columns = (config.joint ? sizes.layers : 1) * config.width();
  // A smaller rank that is iterated may take more than a larger one that is solved in full.
  const int64_t iterated = LargestIteratedRank(columns);
  size_t bytes = 0;
  for (const int64_t rank : {int64_t{config.rank}, std::min<int64_t>(config.rank, iterated)}) {
    Carver joint(nullptr);
    shadowkv::CarveFactor(config.dtype, columns, rank, sizes.max_tokens, joint);
    Carver encode(nullptr);
    config.rank = static_cast<int32_t>(rank);
    shadowkv::CarveEncode(ShadowKvPromptLayout(config, sizes.max_tokens), encode);
    bytes = std::max({bytes, joint.used(), encode.used()});
  }
  return bytes;
}

absl::Status ShadowKvEncode(const ExecContext& context, const ShadowKvEncodeParams& params) {
  if (absl::Status status = shadowkv::Check(params); !status.ok()) {
    return status;
  }
  const ShadowKvPromptLayout& layout = params.layout;
  Carver counter(nullptr);
  shadowkv::CarveEncode(layout, counter);
  if (absl::Status status =
          shadowkv::CheckWorkspace("shadowkv_encode", *context.queue, counter.used());
      !status.ok()) {
    return status;
  }
  Carver carver(context.queue->workspace().data());
  const shadowkv::EncodeScratch scratch = shadowkv::CarveEncode(layout, carver);
  const cudaStream_t stream = context.queue->stream();
  const size_t begin = layout.config.joint ? layout.cluster_values : 0;
  // Padding is zero.
  if (absl::Status status =
          ToStatus(cudaMemsetAsync(params.prompt + begin, 0, layout.bytes - begin, stream),
                   "shadowkv_encode");
      !status.ok()) {
    return status;
  }
  if (!layout.config.joint) {
    const shadowkv::FactorProblem problem = shadowkv::ProblemOf(params);
    shadowkv::FactorKeys(*context.queue, problem, scratch.factor);
    shadowkv::WriteCoefficients(problem,
                                layout.coded.tokens,
                                params.prompt + layout.coded_begin + layout.coded.coefficients,
                                stream);
  }
  shadowkv::CodeTokens(params, scratch.chunk_scores, stream);
  shadowkv::WriteExact(params, scratch.chunk_scores, stream);
  shadowkv::WriteClusters(params, scratch.clusters, stream);
  return ToStatus(cudaGetLastError(), "shadowkv_encode");
}

}  // namespace baton::kernels::cuda
