// Factors of layers of a prompt that are there at once.
#include <cuda_runtime.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/status.h"

#include "kernels/core/carver.h"
#include "kernels/core/exec_context.h"
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/dominant_subspace.h"
#include "kernels/cuda/runtime/cuda_status.h"
#include "kernels/cuda/runtime/device_queue.h"
#include "kernels/cuda/shadowkv_coefficients.cuh"
#include "kernels/cuda/shadowkv_encode_checks.h"
#include "kernels/cuda/shadowkv_factor.cuh"
#include "kernels/cuda/shadowkv_gram.cuh"
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
  return CarveFactor(config.dtype,
                     config.width(),
                     config.rank,
                     layout.prompt_tokens - params.gram_tokens,
                     params.num_layers,
                     carver);
}

// Bases and coefficients.
absl::Status Factor(DeviceQueue& queue,
                    const ShadowKvFactorLayersParams& params,
                    const FactorScratch& scratch) {
  const ShadowKvPromptLayout& layout = params.layout;
  const auto layers = std::span(params.layers).first(static_cast<size_t>(params.num_layers));
  const FactorProblem problem = {.config = layout.config,
                                 .pages = params.pages,
                                 .rope = params.rope,
                                 .layers = {.one = layers.front()},
                                 .tokens = layout.prompt_tokens,
                                 .basis = layout.basis};
  std::array<CoefficientSection, kShadowKvMostFactored> sections;
  for (size_t i = 0; i < layers.size(); ++i) {
    std::byte* section = layers[i].prompt + layout.coded_begin + layout.coded.coefficients;
    sections[i] = {.layers = {.one = layers[i]}, .section = section};
    const size_t bytes = ShadowKvCoefficientLayout(layout.config, layout.coded.tokens).bytes;
    // Padding is zero.
    if (absl::Status status =
            ToStatus(cudaMemsetAsync(section, 0, bytes, queue.stream()), "shadowkv_factor_layers");
        !status.ok()) {
      return status;
    }
  }
  if (absl::Status status = FactorEach(queue, problem, layers, params.gram_tokens, scratch);
      !status.ok()) {
    return status;
  }
  WriteCoefficients(queue, problem, layout.coded.tokens, std::span(sections).first(layers.size()));
  return ToStatus(cudaGetLastError(), "shadowkv_factor_layers");
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
  return shadowkv::Factor(*context.queue, params, shadowkv::Carve(params, carver));
}

}  // namespace baton::kernels::cuda
