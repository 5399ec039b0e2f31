// Coefficients of a prompt.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/shadowkv_gram.cuh"

namespace baton::kernels::cuda::shadowkv {

// Projects the keys of the first `tokens` tokens, which the layers share, on their basis and codes
// the sums into `section`, a ShadowKvCoefficientLayout. fp32 units: 2 tokens columns rank
// operations, 2.7 GFLOP for 8K tokens of 1024 columns at rank 160, 0.1 ms.
void WriteCoefficients(const FactorProblem& problem,
                       int64_t tokens,
                       std::byte* section,
                       cudaStream_t stream);

}  // namespace baton::kernels::cuda::shadowkv
