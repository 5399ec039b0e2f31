// Coefficients of a prompt.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/cuda/runtime/device_queue.h"
#include "kernels/cuda/shadowkv_gram.cuh"
#include "kernels/cuda/shadowkv_keys.cuh"

namespace baton::kernels::cuda::shadowkv {

// Layers that share coefficients, and where these go: a ShadowKvCoefficientLayout.
struct CoefficientSection {
  FactoredLayers layers;
  std::byte* section = nullptr;
};

// Projects the keys of the first `tokens` tokens of each section's layers, in place of the
// problem's, on their basis and codes the sums; at most kShadowKvMostFactored sections. 2 tokens
// columns rank operations each, 2.7 GFLOP for 8K tokens of 1024 columns at rank 160, twice as many
// on the matrix units (bf16).
void WriteCoefficients(const DeviceQueue& queue,
                       const FactorProblem& problem,
                       int64_t tokens,
                       std::span<const CoefficientSection> sections);

}  // namespace baton::kernels::cuda::shadowkv
