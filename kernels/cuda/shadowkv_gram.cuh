// The Gram matrix of a prompt's keys before RoPE.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

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

// Device memory of ComputeGram. Columns are padded with zeros to a multiple of 64.
struct GramScratch {
  int64_t columns = 0;       // padded
  int64_t slab_tokens = 0;   // that are multiplied at once, in parts
  double* gram = nullptr;    // [columns][columns]: the result
  float* sums = nullptr;     // [parts][columns][columns]
  uint16_t* high = nullptr;  // [parts][tokens of a part][columns]: keys before RoPE in bf16
  uint16_t* low = nullptr;   // and what is left of those of fp32, null for others
};
// All but the result, which CarveGramMatrix takes. Grows with columns and tokens. Keys are of
// `dtype`.
GramScratch CarveGram(DType dtype, int64_t columns, int64_t tokens, Carver& carver);
// GramScratch::gram alone.
double* CarveGramMatrix(int64_t columns, Carver& carver);

// gram = sum over tokens of k k^T: fp32 within a part of a slab, 4,096 tokens at most, by cuBLASLt,
// fp64 from there on, in the same order. Keys of fp32 are sums of two bf16 numbers, which leaves
// errors of 2^-17 of a product. Un-rotated keys of bf16 are rounded to it once more, which doubles
// the noise that they have from their first rounding: directions found among them leave out up to
// 1.0001 times what is possible where that is more than 1e-3 of the keys' energy, 1.01 times where
// it is 1e-5, less than what bf16 coefficients of such keys lose.
//
// Matrix units: 2 columns^2 tokens operations, 17 GFLOP for 8K tokens of 1024 columns, 0.024 ms at
// 700 TFLOP/s; three times that in fp32. kNotFound or kFailedPrecondition without a cuBLASLt that
// will do.
absl::Status ComputeGram(DeviceQueue& queue,
                         const FactorProblem& problem,
                         const GramScratch& scratch);

}  // namespace baton::kernels::cuda::shadowkv
