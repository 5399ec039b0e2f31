// Coefficients that the layers of a prompt share: one factorization, as wide as all their keys.
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"

#include "kernels/core/carver.h"
#include "kernels/core/exec_context.h"
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/runtime/cuda_status.h"
#include "kernels/cuda/runtime/device_queue.h"
#include "kernels/cuda/shadowkv_coefficients.cuh"
#include "kernels/cuda/shadowkv_encode_checks.h"
#include "kernels/cuda/shadowkv_factor.cuh"
#include "kernels/kv_format/dense.h"
#include "kernels/kv_format/shadowkv.h"
#include "kernels/ops/param_checker.h"
#include "kernels/ops/shadowkv_params.h"

namespace baton::kernels::cuda {
namespace shadowkv {
namespace {

void CheckJoint(const ShadowKvConfig& config, int64_t layers, ParamChecker& check) {
  check.Require(config.joint, "config.joint", 0, "must be set")
      .Positive("config.kv_heads", config.kv_heads)
      .Positive("config.head_dim", config.head_dim)
      .Require(
          config.head_dim % 8 == 0, "config.head_dim", config.head_dim, "must be a multiple of 8")
      .FloatDType("config.dtype", config.dtype)
      .Positive("config.rank", config.rank)
      .Positive("num_layers", layers)
      .Require(layers * config.width() <= kShadowKvMaxJointWidth,
               "num_layers",
               layers,
               "times kv_heads * head_dim must be at most 4096")
      .Require(config.rank <= layers * config.width(),
               "config.rank",
               config.rank,
               "must be at most kv_heads * head_dim of the layers it is shared by");
  CheckHeads(config, check);
}

absl::Status Check(const ShadowKvEncodeJointParams& params) {
  ParamChecker check("shadowkv_encode_joint");
  const ShadowKvConfig& config = params.layout.config;
  const DensePageLayout& pages = params.pages.layout;
  CheckJoint(config, params.num_layers, check);
  check.Positive("layout.prompt_tokens", params.layout.prompt_tokens)
      .Require(pages.kv_heads == config.kv_heads && pages.head_dim == config.head_dim &&
                   pages.dtype == config.dtype,
               "pages.layout.kv_heads",
               pages.kv_heads,
               "kv_heads, head_dim and dtype of the pages must be the configuration's")
      .Positive("pages.layout.page_tokens", pages.page_tokens)
      .NotNull("layers", params.layers)
      .AtLeast("rope.positions", params.rope.positions, params.layout.prompt_tokens);
  CheckRopeTables(params.rope, check);
  CheckAligned("pages.base", params.pages.base, 16, check);
  CheckAligned("coefficients", params.coefficients, 64, check);
  return check.status();
}

}  // namespace
}  // namespace shadowkv

absl::Status ShadowKvEncodeJoint(const ExecContext& context,
                                 const ShadowKvEncodeJointParams& params) {
  if (absl::Status status = shadowkv::Check(params); !status.ok()) {
    return status;
  }
  const ShadowKvPromptLayout& layout = params.layout;
  const shadowkv::FactorProblem problem = {
      .config = layout.config,
      .pages = params.pages,
      .rope = params.rope,
      .layers = {.array = params.layers, .one = {}, .count = params.num_layers},
      .tokens = layout.prompt_tokens,
      .basis = layout.basis};
  Carver counter(nullptr);
  shadowkv::CarveFactor(
      layout.config.dtype, problem.columns(), layout.config.rank, problem.tokens, 1, counter);
  if (absl::Status status =
          shadowkv::CheckWorkspace("shadowkv_encode_joint", *context.queue, counter.used());
      !status.ok()) {
    return status;
  }
  Carver carver(context.queue->workspace().data());
  const shadowkv::FactorScratch scratch = shadowkv::CarveFactor(
      layout.config.dtype, problem.columns(), layout.config.rank, problem.tokens, 1, carver);
  const cudaStream_t stream = context.queue->stream();
  const size_t bytes = ShadowKvCoefficientLayout(layout.config, layout.coded.tokens).bytes;
  // Padding is zero.
  if (absl::Status status =
          ToStatus(cudaMemsetAsync(params.coefficients, 0, bytes, stream), "shadowkv_encode_joint");
      !status.ok()) {
    return status;
  }
  if (absl::Status status = shadowkv::FactorKeys(*context.queue, problem, scratch); !status.ok()) {
    return status;
  }
  const shadowkv::CoefficientSection section = {.layers = problem.layers,
                                                .section = params.coefficients};
  shadowkv::WriteCoefficients(*context.queue, problem, layout.coded.tokens, {&section, 1});
  return ToStatus(cudaGetLastError(), "shadowkv_encode_joint");
}

}  // namespace baton::kernels::cuda
