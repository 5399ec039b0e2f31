// The low-rank basis of a prompt's keys, of one layer or of several side by side.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <span>

#include "absl/status/status.h"

#include "kernels/core/carver.h"
#include "kernels/core/dtype.h"
#include "kernels/cuda/dominant_subspace.h"
#include "kernels/cuda/runtime/device_queue.h"
#include "kernels/cuda/shadowkv_gram.cuh"
#include "kernels/ops/shadowkv_params.h"

namespace baton::kernels::cuda::shadowkv {

// Of so many problems of one kind at once.
struct FactorScratch {
  SubspaceScratch subspace;  // the first problem's
  double* gram = nullptr;    // the first problem's
  GramScratch grams;         // of all
};
// For keys of `dtype`. Several problems are iterated (LargestIteratedRank).
FactorScratch CarveFactor(
    DType dtype, int64_t columns, int64_t rank, int64_t tokens, int64_t problems, Carver& carver);

// Finds the config.rank directions of most energy among the un-rotated keys and writes every
// layer's columns of them, [rank][width] of the configuration's dtype; each direction has its
// largest element positive. Errors are those of ComputeGram.
absl::Status FactorKeys(DeviceQueue& queue,
                        const FactorProblem& problem,
                        const FactorScratch& scratch);

// The same for layers each of which has factors of its own: `problem` with each of them as its one
// layer, whose `gram` has the sums of the first `gram_tokens` tokens.
absl::Status FactorEach(DeviceQueue& queue,
                        const FactorProblem& problem,
                        std::span<const ShadowKvJointLayer> layers,
                        int64_t gram_tokens,
                        const FactorScratch& scratch);

}  // namespace baton::kernels::cuda::shadowkv
