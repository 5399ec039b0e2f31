// The Gram matrix of a prompt's keys before RoPE.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/core/carver.h"
#include "kernels/cuda/shadowkv_keys.cuh"
#include "kernels/kv_format/shadowkv.h"
#include "kernels/ops/params.h"
#include "kernels/ops/shadowkv_params.h"

namespace baton::kernels::cuda::shadowkv {

// Keys of all heads of some layers, side by side, that are factored together.
struct FactorProblem {
  ShadowKvConfig config;
  DensePages pages;
  ShadowKvRope rope;
  FactoredLayers layers;
  int64_t tokens = 0;
  size_t basis = 0;  // of every layer's prompt section

  constexpr int64_t columns() const { return layers.count * config.width(); }
};

// Device memory of ComputeGram. Columns are padded with zeros to a multiple of 64.
struct GramScratch {
  int64_t columns = 0;      // padded
  int64_t slab_tokens = 0;  // a multiple of 16
  int64_t splits = 0;
  double* gram = nullptr;  // [splits][columns][columns]: the first is the result
  float* slab = nullptr;   // [slab_tokens][columns]: keys before RoPE
};
// Grows with both; of no less than 16 tokens.
GramScratch CarveGram(int64_t columns, int64_t tokens, Carver& carver);

// gram = sum over tokens of k k^T: fp32 within 256 tokens, fp64 from there on, in the order of
// tokens within each of `splits` parts of a slab and then of parts.
//
// fp32 units: 2 columns^2 tokens / 2 operations, 8.6 GFLOP for 8K tokens of 1024 columns, 0.3 ms at
// half of an H200's 60 TFLOP/s. Keys as sums of two bf16 on the matrix units would take three
// products at ten times the rate, and leave errors of 2^-17 of a product.
void ComputeGram(const FactorProblem& problem, const GramScratch& scratch, cudaStream_t stream);

}  // namespace baton::kernels::cuda::shadowkv
