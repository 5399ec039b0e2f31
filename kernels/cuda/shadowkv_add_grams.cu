// Sums for the factors of layers of a prompt whose last tokens are still to come.
#include <cuda_runtime.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/status.h"

#include "kernels/core/carver.h"
#include "kernels/core/exec_context.h"
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/runtime/cuda_status.h"
#include "kernels/cuda/runtime/device_queue.h"
#include "kernels/cuda/shadowkv_encode_checks.h"
#include "kernels/cuda/shadowkv_gram.cuh"
#include "kernels/kv_format/shadowkv.h"
#include "kernels/ops/param_checker.h"
#include "kernels/ops/shadowkv_params.h"
#include "kernels/ops/validate.h"

namespace baton::kernels::cuda {
namespace shadowkv {
namespace {

absl::Status Check(const ShadowKvAddGramsParams& params) {
  if (absl::Status status = Validate(params); !status.ok()) {
    return status;
  }
  ParamChecker check("shadowkv_add_grams");
  CheckHeads(params.config, check);
  CheckRopeTables(params.rope, check);
  CheckAligned("pages.base", params.pages.base, 16, check);
  return check.status();
}

GramScratch Carve(const ShadowKvAddGramsParams& params, Carver& carver) {
  return CarveGrams(params.config.dtype,
                    params.config.width(),
                    params.token_end - params.token_begin,
                    params.num_layers,
                    carver);
}

absl::Status AddGrams(DeviceQueue& queue,
                      const ShadowKvAddGramsParams& params,
                      const GramScratch& scratch) {
  const auto count = static_cast<size_t>(params.num_layers);
  std::array<GramProblem, kShadowKvMostFactored> problems;
  for (size_t i = 0; i < count; ++i) {
    const ShadowKvJointLayer& layer = params.layers[i];
    problems[i] = {.layers = {.one = layer}, .before = layer.gram, .gram = layer.gram};
  }
  const FactorProblem problem = {.config = params.config,
                                 .pages = params.pages,
                                 .rope = params.rope,
                                 .layers = problems.front().layers,
                                 .tokens = params.token_end};
  if (absl::Status status = ComputeGrams(
          queue, problem, std::span(problems).first(count), params.token_begin, scratch);
      !status.ok()) {
    return status;
  }
  return ToStatus(cudaGetLastError(), "shadowkv_add_grams");
}

}  // namespace
}  // namespace shadowkv

int64_t ShadowKvGramNumbers(int64_t columns) {
  return shadowkv::GramColumns(columns) * shadowkv::GramColumns(columns);
}

absl::Status ShadowKvAddGrams(const ExecContext& context, const ShadowKvAddGramsParams& params) {
  if (absl::Status status = shadowkv::Check(params); !status.ok()) {
    return status;
  }
  Carver counter(nullptr);
  shadowkv::Carve(params, counter);
  if (absl::Status status =
          shadowkv::CheckWorkspace("shadowkv_add_grams", *context.queue, counter.used());
      !status.ok()) {
    return status;
  }
  Carver carver(context.queue->workspace().data());
  return shadowkv::AddGrams(*context.queue, params, shadowkv::Carve(params, carver));
}

}  // namespace baton::kernels::cuda
