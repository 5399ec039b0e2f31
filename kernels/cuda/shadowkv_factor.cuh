// The low-rank basis of a prompt's keys, of one layer or of several side by side.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/core/carver.h"
#include "kernels/core/dtype.h"
#include "kernels/cuda/dominant_subspace.h"
#include "kernels/cuda/runtime/device_queue.h"
#include "kernels/cuda/shadowkv_gram.cuh"

namespace baton::kernels::cuda::shadowkv {

struct FactorScratch {
  GramScratch gram;
  SubspaceScratch subspace;
};
// For keys of `dtype`.
FactorScratch CarveFactor(
    DType dtype, int64_t columns, int64_t rank, int64_t tokens, Carver& carver);

// Finds the config.rank directions of most energy among the un-rotated keys and writes every
// layer's columns of them, [rank][width] of the configuration's dtype; each direction has its
// largest element positive.
void FactorKeys(const DeviceQueue& queue,
                const FactorProblem& problem,
                const FactorScratch& scratch);

}  // namespace baton::kernels::cuda::shadowkv
