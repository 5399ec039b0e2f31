// Factors of layers of a prompt that are there at once.
#include <cuda_runtime.h>

#include <cstdint>
#include <span>

#include "absl/status/status.h"

#include "kernels/core/carver.h"
#include "kernels/core/exec_context.h"
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/dominant_subspace.h"
#include "kernels/cuda/runtime/cuda_status.h"
#include "kernels/cuda/runtime/device_queue.h"
#include "kernels/cuda/shadowkv_encode_checks.h"
#include "kernels/cuda/shadowkv_factor.cuh"
#include "kernels/kv_format/shadowkv.h"
#include "kernels/ops/param_checker.h"
#include "kernels/ops/shadowkv_params.h"
#include "kernels/ops/validate.h"

namespace baton::kernels::cuda {
namespace shadowkv {
namespace {

absl::Status Check(const ShadowKvFactorLayersParams& params) {
  if (absl::Status status = Validate(params); !status.ok()) {
    return status;
  }
  const ShadowKvConfig& config = params.layout.config;
  ParamChecker check("shadowkv_factor_layers");
  CheckHeads(config, check);
  CheckRopeTables(params.rope, check);
  CheckAligned("pages.base", params.pages.base, 16, check);
  check.Require(config.rank <= LargestIteratedRank(config.width()),
                "config.rank",
                config.rank,
                "must be at most shadowkv_factored_rank");
  return check.status();
}

FactorScratch Carve(const ShadowKvFactorLayersParams& params, Carver& carver) {
  const ShadowKvPromptLayout& layout = params.layout;
  const ShadowKvConfig& config = layout.config;
  return CarveFactor(
      config.dtype, config.width(), config.rank, layout.prompt_tokens, params.num_layers, carver);
}

}  // namespace
}  // namespace shadowkv

absl::Status ShadowKvFactorLayers(const ExecContext& context,
                                  const ShadowKvFactorLayersParams& params) {
  if (absl::Status status = shadowkv::Check(params); !status.ok()) {
    return status;
  }
  Carver counter(nullptr);
  shadowkv::Carve(params, counter);
  if (absl::Status status =
          shadowkv::CheckWorkspace("shadowkv_factor_layers", *context.queue, counter.used());
      !status.ok()) {
    return status;
  }
  Carver carver(context.queue->workspace().data());
  const ShadowKvPromptLayout& layout = params.layout;
  shadowkv::FactorEach(*context.queue,
                       {.config = layout.config,
                        .pages = params.pages,
                        .rope = params.rope,
                        .layers = {.one = params.layers.front()},
                        .tokens = layout.prompt_tokens,
                        .basis = layout.basis},
                       std::span(params.layers).first(static_cast<size_t>(params.num_layers)),
                       shadowkv::Carve(params, carver));
  return ToStatus(cudaGetLastError(), "shadowkv_factor_layers");
}

}  // namespace baton::kernels::cuda
