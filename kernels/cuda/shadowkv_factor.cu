#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "kernels/core/carver.h"
#include "kernels/core/dtype.h"
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

// Block j writes row j of every layer's basis.
__global__ void __launch_bounds__(kThreads)
    WriteBasis(const __grid_constant__ FactorProblem problem,
               DominantVectors dominant,
               int64_t stride) {
  const int64_t row = blockIdx.x;
  const int64_t columns = problem.columns();
  const int64_t width = problem.config.width();
  const double* vector = dominant.vectors + dominant.order[row] * stride;
  const double sign = LargestIsNegative(vector, columns) ? -1.0 : 1.0;
  for (int64_t c = threadIdx.x; c < columns; c += kThreads) {
    StoreElement(static_cast<float>(sign * vector[c]),
                 problem.config.dtype,
                 row * width + c % width,
                 problem.layers[c / width].prompt + problem.basis);
  }
}

}  // namespace

FactorScratch CarveFactor(
    DType dtype, int64_t columns, int64_t rank, int64_t tokens, Carver& carver) {
  FactorScratch scratch;
  // First what does not depend on the tokens, so that the iteration's launches come again.
  scratch.subspace = CarveSubspace(columns, rank, carver);
  scratch.gram = CarveGram(dtype, columns, tokens, carver);
  return scratch;
}

void FactorKeys(const DeviceQueue& queue,
                const FactorProblem& problem,
                const FactorScratch& scratch) {
  const cudaStream_t stream = queue.stream();
  ComputeGram(queue, problem, scratch.gram);
  const DominantVectors dominant = FindDominant(queue, scratch.subspace, scratch.gram.gram);
  WriteBasis<<<static_cast<uint32_t>(problem.config.rank), kThreads, 0, stream>>>(
      problem, dominant, scratch.subspace.width);
}

}  // namespace baton::kernels::cuda::shadowkv
