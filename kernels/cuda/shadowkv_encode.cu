// Codes a prompt. Nearly all of the time is the factorization's (dominant_subspace.h,
// shadowkv_gram.cuh); the rest reads keys and values twice and writes the section once.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"

#include "kernels/core/carver.h"
#include "kernels/core/dtype.h"
#include "kernels/core/exec_context.h"
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/dominant_subspace.h"
#include "kernels/cuda/ptx_tile.cuh"
#include "kernels/cuda/runtime/cuda_status.h"
#include "kernels/cuda/runtime/device_queue.h"
#include "kernels/cuda/shadowkv_clusters.cuh"
#include "kernels/cuda/shadowkv_coding.cuh"
#include "kernels/cuda/shadowkv_coefficients.cuh"
#include "kernels/cuda/shadowkv_encode_checks.h"
#include "kernels/cuda/shadowkv_exact.cuh"
#include "kernels/cuda/shadowkv_factor.cuh"
#include "kernels/cuda/shadowkv_gram.cuh"
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
  FactorScratch factor;           // where it is done here
  float* chunk_scores = nullptr;  // [kv_heads][chunks]
  ClusterScratch clusters;
};

// Whether the op finds the basis itself.
bool Factors(const ShadowKvEncodeParams& params) {
  return !params.layout.config.joint && !params.factored;
}

EncodeScratch CarveEncode(const ShadowKvPromptLayout& layout, bool factors, Carver& carver) {
  const ShadowKvConfig& config = layout.config;
  EncodeScratch scratch;
  if (factors) {
    scratch.factor =
        CarveFactor(config.dtype, config.width(), config.rank, layout.prompt_tokens, 1, carver);
  }
  scratch.chunk_scores = carver.Take<float>(config.kv_heads * layout.coded.chunks);
  scratch.clusters = CarveClusters(config, carver);
  return scratch;
}

// The lane's elements of a unit's vectors from `first` on, in shared memory. Loops over them are
// not unrolled: what a block executes once takes longer to be fetched than to be executed.
template <DType kDType>
struct StagedVectors {
  static constexpr int kUnroll = 1;
  static constexpr size_t kLaneBytes = 8 * DTypeBytes(kDType);
  std::byte* memory;
  int32_t first = 0;

  __device__ std::byte* At(int32_t t) const {
    return memory + ((first + t) * kCodeThreads + threadIdx.x) * kLaneBytes;
  }
  __device__ void operator()(int32_t t, float (&x)[8]) const { LoadElements(At(t), kDType, 0, x); }
  __device__ StagedVectors From(int32_t t) const { return {.memory = memory, .first = first + t}; }

  // Brings vectors_of(token of the section) of the unit, zeros where there are none, all of them on
  // their way at once.
  template <typename VectorsOf>
  __device__ void Bring(const CodedTarget& target,
                        const CodingUnit& unit,
                        const VectorsOf& vectors_of) const {
    const size_t of_lane = unit.lane * kLaneBytes;
#pragma unroll 1
    for (int32_t t = 0; t < kUnitTokens; ++t) {
      const bool there = t < unit.tokens && unit.has_elements(target);
      const std::byte* from =
          vectors_of(unit.first + (there ? t : 0)).head(unit.head) + (there ? of_lane : 0);
#pragma unroll
      for (size_t piece = 0; piece < kLaneBytes; piece += 16) {
        CopyAsync16(At(t) + piece, from + piece, there ? 16 : 0);
      }
    }
    CommitCopies();
    WaitForCopies<0>();  // a thread reads what it has copied itself
  }
};

// What a layer of blocks codes, those first that take longest.
enum CodedPart : uint32_t { kPartValues, kPartChunks, kPartKeys };

// What a block of the layer codes of its units. All lanes of its warps call it.
template <int kChunk, DType kDType, typename Tokens>
__device__ void CodePart(const CodedTarget& target,
                         const CodingUnit& unit,
                         const Tokens& tokens,
                         std::byte* memory) {
  const StagedVectors<kDType> vectors = {.memory = memory};
  if (blockIdx.z == kPartValues) {
    vectors.Bring(target, unit, [&](int32_t token) { return tokens.Values(token); });
  } else {
    vectors.Bring(target, unit, [&](int32_t token) { return tokens.Keys(token); });
  }
  if (blockIdx.z == kPartChunks) {
#pragma unroll 1
    for (int32_t t = 0; t < kUnitTokens; t += kChunk) {
      CodeChunk<kChunk, true>(target, unit, vectors.From(t), t);
    }
    return;
  }
#pragma unroll 1
  for (int32_t t = 0; t < kUnitTokens; ++t) {
    float x[8];
    vectors(t, x);
    if (blockIdx.z == kPartValues) {
      CodeValue(target, unit, x, t);
    } else {
      CodeKey(target, unit, x, t);
    }
  }
}

// Codes part z of the tokens of head y: each group of lanes a unit. Where units lie in one page
// each (kInPage), it is looked up once.
template <int kChunk, bool kInPage>
__global__ void __launch_bounds__(kCodeThreads)
    CodePrompt(const __grid_constant__ ShadowKvEncodeParams params, float* chunk_scores) {
  extern __shared__ __align__(16) std::byte memory[];
  const ShadowKvPromptLayout& layout = params.layout;
  std::byte* section = params.prompt + layout.coded_begin;
  const CodedTarget target = {.config = &layout.config,
                              .layout = &layout.coded,
                              .section = section,
                              .value_section = layout.config.values_apart ? params.values : section,
                              .chunk_scores = chunk_scores};
  const auto lanes = static_cast<uint32_t>(VectorLanes(layout.config.head_dim));
  const CodingUnit unit(target,
                        static_cast<int32_t>(blockIdx.y),
                        blockIdx.x * (kCodeThreads / lanes) + threadIdx.x / lanes);
  const PageTokens pages(params.pages, params.page_table);
  WithDType(target, [&]<DType kDType>() {
    if constexpr (kInPage) {
      CodePart<kChunk, kDType>(target, unit, pages.RunFrom(unit.first), memory);
    } else {
      CodePart<kChunk, kDType>(target, unit, pages, memory);
    }
  });
}

template <bool kInPage>
auto CodePromptOf(int32_t chunk_tokens) {
  return chunk_tokens == 1   ? CodePrompt<1, kInPage>
         : chunk_tokens == 2 ? CodePrompt<2, kInPage>
         : chunk_tokens == 4 ? CodePrompt<4, kInPage>
                             : CodePrompt<8, kInPage>;
}

void CodeTokens(const ShadowKvEncodeParams& params, float* chunk_scores, cudaStream_t stream) {
  const ShadowKvConfig& config = params.layout.config;
  const int64_t units = (params.layout.coded.tokens + kUnitTokens - 1) / kUnitTokens;
  const int64_t block_units = kCodeThreads / VectorLanes(config.head_dim);
  if (units == 0) return;
  const dim3 grid(static_cast<uint32_t>((units + block_units - 1) / block_units),
                  static_cast<uint32_t>(config.kv_heads),
                  config.selector == ShadowKvSelector::kQ2 ? 3 : 2);
  const size_t shared = size_t{kUnitTokens} * kCodeThreads * 8 * DTypeBytes(config.dtype);
  const bool in_page = params.pages.layout.page_tokens % kUnitTokens == 0;
  const auto code =
      in_page ? CodePromptOf<true>(config.chunk_tokens) : CodePromptOf<false>(config.chunk_tokens);
  code<<<grid, kCodeThreads, shared, stream>>>(params, chunk_scores);
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

// Padding is zero. Basis and coefficients are left alone where another op writes them.
absl::Status ZeroPadding(const ShadowKvEncodeParams& params, cudaStream_t stream) {
  const ShadowKvPromptLayout& layout = params.layout;
  const auto zero = [&](size_t begin, size_t end) {
    return ToStatus(cudaMemsetAsync(params.prompt + begin, 0, end - begin, stream),
                    "shadowkv_encode");
  };
  if (Factors(params)) {
    return zero(0, layout.bytes);
  }
  absl::Status status = zero(layout.cluster_values, layout.coded_begin + layout.coded.coefficients);
  status.Update(zero(layout.coded_begin + layout.coded.landmarks, layout.bytes));
  return status;
}

// Basis and coefficients.
absl::Status Factor(DeviceQueue& queue,
                    const ShadowKvEncodeParams& params,
                    const FactorScratch& scratch) {
  const ShadowKvPromptLayout& layout = params.layout;
  const FactorProblem problem = {.config = layout.config,
                                 .pages = params.pages,
                                 .rope = params.rope,
                                 .layers = {.one = {.page_table = params.page_table,
                                                    .key_bias = params.key_bias,
                                                    .prompt = params.prompt}},
                                 .tokens = layout.prompt_tokens,
                                 .basis = layout.basis};
  if (absl::Status status = FactorKeys(queue, problem, scratch); !status.ok()) {
    return status;
  }
  const CoefficientSection section = {
      .layers = problem.layers,
      .section = params.prompt + layout.coded_begin + layout.coded.coefficients};
  WriteCoefficients(queue, problem, layout.coded.tokens, {&section, 1});
  return absl::OkStatus();
}

}  // namespace
}  // namespace shadowkv

size_t ShadowKvEncodeWorkspaceBytes(const ShadowKvWorkspaceSizes& sizes) {
  ShadowKvConfig config = sizes.config;
  if (sizes.factored == 0) {
    Carver encode(nullptr);
    shadowkv::CarveEncode(ShadowKvPromptLayout(config, sizes.max_tokens), false, encode);
    return encode.used();
  }
  const int64_t columns = (config.joint ? sizes.layers : 1) * config.width();
  // A smaller rank that is iterated may take more than a larger one that is solved in full.
  const int64_t iterated = LargestIteratedRank(columns);
  size_t bytes = 0;
  for (const int64_t rank : {int64_t{config.rank}, std::min<int64_t>(config.rank, iterated)}) {
    const bool several = !config.joint && rank > 0 && rank <= iterated;
    Carver factor(nullptr);
    shadowkv::CarveFactor(
        config.dtype, columns, rank, sizes.max_tokens, several ? sizes.factored : 1, factor);
    Carver encode(nullptr);
    config.rank = static_cast<int32_t>(rank);
    shadowkv::CarveEncode(ShadowKvPromptLayout(config, sizes.max_tokens), !config.joint, encode);
    bytes = std::max({bytes, factor.used(), encode.used()});
  }
  return bytes;
}

absl::Status ShadowKvEncode(const ExecContext& context, const ShadowKvEncodeParams& params) {
  if (absl::Status status = shadowkv::Check(params); !status.ok()) {
    return status;
  }
  const ShadowKvPromptLayout& layout = params.layout;
  Carver counter(nullptr);
  shadowkv::CarveEncode(layout, shadowkv::Factors(params), counter);
  if (absl::Status status =
          shadowkv::CheckWorkspace("shadowkv_encode", *context.queue, counter.used());
      !status.ok()) {
    return status;
  }
  Carver carver(context.queue->workspace().data());
  const shadowkv::EncodeScratch scratch =
      shadowkv::CarveEncode(layout, shadowkv::Factors(params), carver);
  const cudaStream_t stream = context.queue->stream();
  if (absl::Status status = shadowkv::ZeroPadding(params, stream); !status.ok()) {
    return status;
  }
  if (shadowkv::Factors(params)) {
    if (absl::Status status = shadowkv::Factor(*context.queue, params, scratch.factor);
        !status.ok()) {
      return status;
    }
  }
  shadowkv::CodeTokens(params, scratch.chunk_scores, stream);
  shadowkv::WriteExact(params, scratch.chunk_scores, stream);
  shadowkv::WriteClusters(params, scratch.clusters, stream);
  return ToStatus(cudaGetLastError(), "shadowkv_encode");
}

}  // namespace baton::kernels::cuda
