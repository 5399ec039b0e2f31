// Coefficients of a prompt.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/runtime/device_queue.h"
#include "kernels/cuda/shadowkv_gram.cuh"

namespace baton::kernels::cuda::shadowkv {

// Projects the keys of the first `tokens` tokens, which the layers share, on their basis and codes
// the sums into `section`, a ShadowKvCoefficientLayout: 2 tokens columns rank operations, 2.7 GFLOP
// for 8K tokens of 1024 columns at rank 160, twice as many on the matrix units (bf16).
void WriteCoefficients(const DeviceQueue& queue,
                       const FactorProblem& problem,
                       int64_t tokens,
                       std::byte* section);

}  // namespace baton::kernels::cuda::shadowkv
