// What becomes of the sums of a tile: bias, residual, rotation, gate, and the rounding.
#pragma once

#include <cstdint>

#include "kernels/cuda/bf16.cuh"
#include "kernels/cuda/matmul_few_rows_work.cuh"
#include "kernels/cuda/ptx_bf16.cuh"
#include "kernels/cuda/rope_pair.cuh"
#include "kernels/cuda/silu.cuh"

namespace baton::kernels::cuda::few_rows {

// Threads that finish a tile: one for each row and pair of features, one of either run.
inline constexpr int32_t kFinishers = kRunFeatures * kMostRows;

// Where a thread's pair of a tile belongs.
struct Pair {
  int32_t features[2];
  bool exists[2];
  bool rotated;
  int32_t angle;  // of its row's
};

// What is added to a pair and turns it, asked for before its sums are there.
struct Operands {
  float bias[2] = {};
  float before[2] = {};
  float cosine = 1.0f;
  float sine = 0.0f;
};

__device__ inline int32_t FinisherRow() { return static_cast<int32_t>(threadIdx.x) % kMostRows; }
__device__ inline int32_t FinisherFeature() {
  return static_cast<int32_t>(threadIdx.x) / kMostRows;
}

__device__ inline Pair PairOf(const Call& call, int32_t tile) {
  const MatmulParams& params = call.params;
  const int32_t first = FirstFeature(call, tile) + FinisherFeature();
  const int32_t group = first / (2 * call.distance);
  const int32_t in_run = first - group * 2 * call.distance;
  const bool inside = FinisherRow() < params.rows && in_run < call.distance;
  const int32_t end = call.features();
  return {.features = {first, first + call.distance},
          .exists = {inside && first < end, inside && first + call.distance < end},
          .rotated = params.rope.cosines != nullptr && group < params.rope.heads,
          .angle = in_run};
}

__device__ inline Operands LoadOperands(const Call& call, const Pair& pair) {
  const MatmulParams& params = call.params;
  Operands operands;
#pragma unroll
  for (int32_t run = 0; run < 2; ++run) {
    if (!pair.exists[run]) continue;
    if (params.bias != nullptr) operands.bias[run] = params.bias[pair.features[run]];
    if (params.accumulate) {
      float before[1];
      LoadBf16(static_cast<const uint16_t*>(params.out) + FinisherRow() * params.out_stride +
                   pair.features[run],
               before);
      operands.before[run] = before[0];
    }
  }
  if (pair.rotated && pair.exists[0]) {
    const int32_t angle = FinisherRow() * call.distance + pair.angle;
    operands.cosine = params.rope.cosines[angle];
    operands.sine = params.rope.sines[angle];
  }
  return operands;
}

__device__ inline float RoundedToBf16(float x) { return LowBf16(PackBf16(x, 0.0f)); }

// Writes the pair's element of the result.
__device__ inline void Store(const Call& call, int32_t feature, float value) {
  const int64_t at = FinisherRow() * call.params.out_stride + feature;
  if (call.params.wide) {
    static_cast<float*>(call.params.out)[at] = value;
  } else {
    const float values[1] = {value};
    StoreBf16(static_cast<uint16_t*>(call.params.out) + at, values);
  }
}

// Adds the warps' sums in their order, and does what the rest of the op asks for.
__device__ inline void FinishPair(const Call& call,
                                  const Pair& pair,
                                  const Operands& operands,
                                  const TileSums& sums) {
  float values[2];
#pragma unroll
  for (int32_t run = 0; run < 2; ++run) {
    const int32_t feature = FinisherFeature() + run * kRunFeatures;
    float sum = 0.0f;
#pragma unroll
    for (int32_t warp = 0; warp < kConsumerWarps; ++warp) sum += sums[warp][feature][FinisherRow()];
    values[run] = sum + operands.bias[run] + operands.before[run];
  }
  if (pair.rotated || call.params.gate_up != nullptr) {
    values[0] = RoundedToBf16(values[0]);
    values[1] = RoundedToBf16(values[1]);
  }
  if (pair.rotated) RotatePair(values[0], values[1], operands.cosine, operands.sine);
  if (call.params.gate_up != nullptr) {
    if (pair.exists[0]) Store(call, pair.features[0], values[1] * Silu(values[0]));
    return;
  }
  if (pair.exists[0]) Store(call, pair.features[0], values[0]);
  if (pair.exists[1]) Store(call, pair.features[1], values[1]);
}

}  // namespace baton::kernels::cuda::few_rows
