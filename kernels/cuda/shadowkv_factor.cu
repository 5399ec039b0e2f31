#include <cuda_runtime.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/status.h"

#include "kernels/core/carver.h"
#include "kernels/core/dtype.h"
#include "kernels/cuda/alike_problems.cuh"
#include "kernels/cuda/dominant_subspace.h"
#include "kernels/cuda/runtime/device_queue.h"
#include "kernels/cuda/shadowkv_factor.cuh"
#include "kernels/cuda/shadowkv_gram.cuh"
#include "kernels/cuda/shadowkv_keys.cuh"
#include "kernels/kv_format/shadowkv.h"
#include "kernels/ops/shadowkv_params.h"

namespace baton::kernels::cuda::shadowkv {
namespace {

constexpr int kThreads = 256;

// Whether the vector's largest element, the first of several, is negative. All threads of the block
// call it, once.
__device__ bool LargestIsNegative(const double* vector, int64_t columns) {
  __shared__ double values[kThreads];
  __shared__ int64_t places[kThreads];
  const int t = static_cast<int>(threadIdx.x);
  double value = 0.0;
  int64_t place = columns;
  for (int64_t c = t; c < columns; c += kThreads) {
    if (fabs(vector[c]) > fabs(value)) {
      value = vector[c];
      place = c;
    }
  }
  values[t] = value;
  places[t] = place;
  __syncthreads();
  for (int step = kThreads / 2; step > 0; step /= 2) {
    if (t < step) {
      const double mine = fabs(values[t]);
      const double theirs = fabs(values[t + step]);
      if (theirs > mine || (theirs == mine && places[t + step] < places[t])) {
        values[t] = values[t + step];
        places[t] = places[t + step];
      }
    }
    __syncthreads();
  }
  return values[0] < 0.0;
}

// One thread's part of a row of layers' bases: `layer_of` tells the layer of a column.
template <typename LayerOf>
__device__ void WriteRow(const FactorProblem& problem,
                         const double* vector,
                         int64_t row,
                         const LayerOf& layer_of) {
  const int64_t columns = problem.columns();
  const int64_t width = problem.config.width();
  const double sign = LargestIsNegative(vector, columns) ? -1.0 : 1.0;
  for (int64_t c = threadIdx.x; c < columns; c += kThreads) {
    StoreElement(static_cast<float>(sign * vector[c]),
                 problem.config.dtype,
                 row * width + c % width,
                 layer_of(c).prompt + problem.basis);
  }
}

// Block j writes row j of every layer's basis.
__global__ void __launch_bounds__(kThreads)
    WriteBasis(const __grid_constant__ FactorProblem problem,
               DominantVectors dominant,
               int64_t stride) {
  const int64_t row = blockIdx.x;
  WriteRow(problem, dominant.vectors + dominant.order[row] * stride, row, [&](int64_t column) {
    return problem.layers[column / problem.config.width()];
  });
}

struct EachLayer {
  ShadowKvJointLayer at[kShadowKvMostFactored];
};

// Block (j, i) writes row j of the basis of layer i, whose problem has number i.
__global__ void __launch_bounds__(kThreads)
    WriteEachBasis(const __grid_constant__ FactorProblem problem,
                   const __grid_constant__ EachLayer layers,
                   const __grid_constant__ SubspaceScratch scratch,
                   DominantVectors dominant) {
  const AlikeProblems& problems = scratch.orthonormal.problems;
  const int64_t row = blockIdx.x;
  const int32_t* order = OfProblem(problems, blockIdx.y, dominant.order);
  const double* vectors = OfProblem(problems, blockIdx.y, dominant.vectors);
  WriteRow(problem, vectors + order[row] * scratch.width, row, [&](int64_t /*column*/) {
    return layers.at[blockIdx.y];
  });
}

// A problem's arrays that are there for each.
struct OwnArrays {
  SubspaceScratch subspace;
  double* gram = nullptr;
};

OwnArrays CarveOwn(int64_t columns, int64_t rank, Carver& carver) {
  OwnArrays own;
  own.subspace = CarveSubspace(columns, rank, carver);
  own.gram = carver.Take<double>(GramColumns(columns) * GramColumns(columns));
  return own;
}

}  // namespace

// First what does not depend on the tokens, so that the iteration's launches come again.
FactorScratch CarveFactor(
    DType dtype, int64_t columns, int64_t rank, int64_t tokens, int64_t problems, Carver& carver) {
  Carver counter(nullptr);
  CarveOwn(columns, rank, counter);
  const size_t stride = counter.used();
  Carver first(carver.Take<std::byte>(problems * static_cast<int64_t>(stride)));
  const OwnArrays own = CarveOwn(columns, rank, first);
  FactorScratch scratch = {.subspace = own.subspace,
                           .gram = own.gram,
                           .grams = CarveGrams(dtype, columns, tokens, problems, carver)};
  scratch.subspace.orthonormal.problems = {.count = problems, .stride = stride};
  return scratch;
}

absl::Status FactorKeys(DeviceQueue& queue,
                        const FactorProblem& problem,
                        const FactorScratch& scratch) {
  const GramProblem one = {.layers = problem.layers, .gram = scratch.gram};
  if (absl::Status status = ComputeGrams(queue, problem, {&one, 1}, 0, scratch.grams);
      !status.ok()) {
    return status;
  }
  const DominantVectors dominant = FindDominant(queue, scratch.subspace, scratch.gram);
  WriteBasis<<<static_cast<uint32_t>(problem.config.rank), kThreads, 0, queue.stream()>>>(
      problem, dominant, scratch.subspace.width);
  return absl::OkStatus();
}

absl::Status FactorEach(DeviceQueue& queue,
                        const FactorProblem& problem,
                        std::span<const ShadowKvJointLayer> layers,
                        int64_t gram_tokens,
                        const FactorScratch& scratch) {
  const AlikeProblems& problems = scratch.subspace.orthonormal.problems;
  EachLayer each = {};
  std::array<GramProblem, kShadowKvMostFactored> grams;
  for (size_t i = 0; i < layers.size(); ++i) {
    each.at[i] = layers[i];
    grams[i] = {.layers = {.one = layers[i]},
                .before = layers[i].gram,
                .gram = scratch.gram + i * problems.stride / sizeof(double)};
  }
  if (absl::Status status = ComputeGrams(
          queue, problem, std::span(grams).first(layers.size()), gram_tokens, scratch.grams);
      !status.ok()) {
    return status;
  }
  const DominantVectors dominant = FindDominant(queue, scratch.subspace, scratch.gram);
  const dim3 grid(static_cast<uint32_t>(problem.config.rank), static_cast<uint32_t>(layers.size()));
  WriteEachBasis<<<grid, kThreads, 0, queue.stream()>>>(problem, each, scratch.subspace, dominant);
  return absl::OkStatus();
}

}  // namespace baton::kernels::cuda::shadowkv
