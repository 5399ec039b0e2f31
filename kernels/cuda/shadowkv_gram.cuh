// The Gram matrix of a prompt's keys before RoPE.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <span>

#include "absl/status/status.h"

#include "kernels/core/carver.h"
#include "kernels/core/dtype.h"
#include "kernels/cuda/runtime/device_queue.h"
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

// One of the problems whose Gram matrices are computed at the same time.
struct GramProblem {
  FactoredLayers layers;
  // Sums over the tokens before those that are added, which may be `gram`; looked at where there
  // are any.
  const double* before = nullptr;
  double* gram = nullptr;  // [GramColumns][GramColumns]: the result
};

// Columns and rows of a Gram matrix with their padding, zeros.
int64_t GramColumns(int64_t columns);

// Device memory of ComputeGrams.
struct GramScratch {
  int64_t columns = 0;       // GramColumns
  int64_t slab_tokens = 0;   // of each problem that are multiplied at once, in parts
  float* sums = nullptr;     // [problems][parts][columns][columns]
  uint16_t* high = nullptr;  // [problems][parts][tokens of a part][columns]: keys before RoPE, bf16
  uint16_t* low = nullptr;   // and what is left of those of fp32, null for others
};
// For kShadowKvMostFactored problems at most, of so many tokens to be added. Grows with columns and
// tokens. Keys are of `dtype`.
GramScratch CarveGrams(
    DType dtype, int64_t columns, int64_t tokens, int64_t problems, Carver& carver);

// gram = before + sum over tokens from token_begin to problem.tokens of k k^T, of each problem:
// `problem` with its layers, of which all have as many. fp32 within a part of a slab, 4,096 tokens
// at most, by cuBLASLt, fp64 from there on, in the same order. Keys of fp32 are sums of two bf16
// numbers, which leaves errors of 2^-17 of a product. Un-rotated keys of bf16 are rounded to it
// once more, which doubles the noise that they have from their first rounding: directions found
// among them leave out up to 1.0001 times what is possible where that is more than 1e-3 of the
// keys' energy, 1.01 times where it is 1e-5, less than what bf16 coefficients of such keys lose.
//
// Matrix units: 2 columns^2 tokens operations, 17 GFLOP for 8K tokens of 1024 columns, 0.024 ms at
// 700 TFLOP/s; three times that in fp32. kNotFound or kFailedPrecondition without a cuBLASLt that
// will do.
absl::Status ComputeGrams(DeviceQueue& queue,
                          const FactorProblem& problem,
                          std::span<const GramProblem> problems,
                          int64_t token_begin,
                          const GramScratch& scratch);

}  // namespace baton::kernels::cuda::shadowkv
