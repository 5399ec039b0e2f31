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
  int64_t columns = 0;       // padded
  int64_t slab_tokens = 0;   // a multiple of 32
  int64_t parts = 0;         // of a slab
  double* gram = nullptr;    // [columns][columns]: the result
  float* sums = nullptr;     // [parts][columns][columns]
  uint16_t* high = nullptr;  // [slab_tokens][columns]: keys before RoPE in bf16
  uint16_t* low = nullptr;   // and what is left of them
};
// Grows with both; of no less than 16 tokens.
GramScratch CarveGram(int64_t columns, int64_t tokens, Carver& carver);

// gram = sum over tokens of k k^T, keys as sums of two bf16 numbers: fp32 within a part of a slab,
// about 600 tokens and 1,024 at most, fp64 from there on, always in the same order. Leaves errors
// of 2^-17 of a product.
//
// Matrix units: 3 products of columns^2 tokens operations by symmetry, 29 GFLOP for 8K tokens of
// 1024 columns, 0.07 ms at 400 TFLOP/s.
void ComputeGram(const FactorProblem& problem, const GramScratch& scratch, cudaStream_t stream);

}  // namespace baton::kernels::cuda::shadowkv
