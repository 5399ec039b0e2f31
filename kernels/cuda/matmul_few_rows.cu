// Up to eight rows are bound by the weights: one row of Llama-3.1-8B's output projection reads 32
// MiB, 7.9 us of an H200's memory, in which starting to read and the last block's end show. So
// blocks are small and all there at once, each warp has asked for a good part of its weights before
// the first arrive, and the first of them it asks for before the kernels in front have ended, on
// whose results no weight depends.
//
// A block makes 16 features of all rows; its eight warps share the depth. Weights are the 16-row
// operand of the matrix instruction and rows of x its 8 columns. Which element of the depth is
// which k of a product is free, so a lane takes 16 contiguous bytes of weights, and of x alike:
// straight from memory, as no other lane wants them.
#include <cuda_runtime.h>

#include <cstdint>

#include "absl/status/status.h"

#include "kernels/cuda/bf16.cuh"
#include "kernels/cuda/matmul_few_rows.h"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/ptx_bf16.cuh"
#include "kernels/cuda/runtime/cuda_status.h"
#include "kernels/cuda/runtime/device_queue.h"
#include "kernels/cuda/runtime/early_launch.h"
#include "kernels/ops/params.h"

namespace baton::kernels::cuda {
namespace {

constexpr int32_t kWarp = 32;
constexpr int32_t kWarps = 8;
constexpr int32_t kFeatures = 16;
constexpr int32_t kMostRows = 8;
// Elements of the depth that the four lanes of a row take at a time, and all warps.
constexpr int32_t kStep = 4 * kVectorWidth;
constexpr int32_t kBlockStep = kWarps * kStep;
// Steps of a warp whose weights are on their way at once; as many again are being multiplied.
constexpr int32_t kAhead = 4;

struct Call {
  const uint16_t* x;
  int64_t x_stride;
  const uint16_t* weight;
  const float* bias;
  void* out;
  int64_t out_stride;
  int64_t in_features;
  int64_t out_features;
  int32_t rows;
  bool accumulate;
};

// What a lane multiplies in kAhead steps: of its weights' rows l / 4 and l / 4 + 8, and of row l /
// 4 of x. Zeros behind the depth and for rows that there are not.
struct Batch {
  uint4 weights[kAhead][2];
  uint4 x[kAhead];
};

// Where a lane reads.
struct Lane {
  const uint16_t* weights[2];
  const uint16_t* x;  // null: a column without a row
  int64_t first;      // element of the depth
};

__device__ Lane LaneOf(const Call& call) {
  const auto lane = static_cast<int32_t>(threadIdx.x % kWarp);
  const auto warp = static_cast<int32_t>(threadIdx.x / kWarp);
  const int64_t feature = int64_t{blockIdx.x} * kFeatures + lane / 4;
  const int64_t last = call.out_features - 1;
  return {.weights = {call.weight + min(feature, last) * call.in_features,
                      call.weight + min(feature + 8, last) * call.in_features},
          .x = lane / 4 < call.rows ? call.x + lane / 4 * call.x_stride : nullptr,
          .first = warp * kStep + lane % 4 * kVectorWidth};
}

__device__ void LoadWeights(const Lane& lane, int64_t begin, int64_t in_features, Batch& batch) {
#pragma unroll
  for (int32_t s = 0; s < kAhead; ++s) {
    const int64_t k = lane.first + begin + s * kBlockStep;
#pragma unroll
    for (int32_t half = 0; half < 2; ++half) {
      batch.weights[s][half] = k < in_features
                                   ? __ldcs(reinterpret_cast<const uint4*>(lane.weights[half] + k))
                                   : uint4{};
    }
  }
}

__device__ void LoadRows(const Lane& lane, int64_t begin, int64_t in_features, Batch& batch) {
#pragma unroll
  for (int32_t s = 0; s < kAhead; ++s) {
    const int64_t k = lane.first + begin + s * kBlockStep;
    batch.x[s] = lane.x != nullptr && k < in_features ? *reinterpret_cast<const uint4*>(lane.x + k)
                                                      : uint4{};
  }
}

__device__ void Multiply(const Batch& batch, float (&sums)[4]) {
#pragma unroll
  for (int32_t s = 0; s < kAhead; ++s) {
    const uint4& low = batch.weights[s][0];
    const uint4& high = batch.weights[s][1];
    const uint4& x = batch.x[s];
    MultiplyAddBf16(sums, {low.x, high.x, low.y, high.y}, {x.x, x.y});
    MultiplyAddBf16(sums, {low.z, high.z, low.w, high.w}, {x.z, x.w});
  }
}

// Adds the warps' sums of one feature and row, bias and what is there, and writes the result.
template <bool kWide>
__device__ void Finish(const Call& call, const float (&sums)[kWarps][kFeatures][kMostRows]) {
  const auto in_block = static_cast<int32_t>(threadIdx.x % kFeatures);
  const auto row = static_cast<int32_t>(threadIdx.x / kFeatures);
  const int64_t feature = int64_t{blockIdx.x} * kFeatures + in_block;
  if (row >= call.rows || feature >= call.out_features) return;
  float sum = 0.0f;
#pragma unroll
  for (int32_t warp = 0; warp < kWarps; ++warp) sum += sums[warp][in_block][row];
  if (call.bias != nullptr) sum += call.bias[feature];
  const int64_t at = row * call.out_stride + feature;
  if constexpr (kWide) {
    static_cast<float*>(call.out)[at] = sum;
  } else {
    uint16_t* out = static_cast<uint16_t*>(call.out) + at;
    float value[1] = {sum};
    if (call.accumulate) {
      float before[1];
      LoadBf16(out, before);
      value[0] += before[0];
    }
    StoreBf16(out, value);
  }
}

template <bool kWide>
__global__ void __launch_bounds__(kWarps* kWarp, 2)
    FewRowsKernel(const __grid_constant__ Call call) {
  __shared__ float shared[kWarps][kFeatures][kMostRows];
  LaunchDependents();
  const Lane lane = LaneOf(call);
  Batch batch;
  LoadWeights(lane, 0, call.in_features, batch);
  WaitForPredecessors();
  LoadRows(lane, 0, call.in_features, batch);
  float sums[4] = {};
  constexpr int64_t kBatch = int64_t{kAhead} * kBlockStep;
  for (int64_t begin = 0; begin < call.in_features; begin += kBatch) {
    Batch next;
    LoadWeights(lane, begin + kBatch, call.in_features, next);
    LoadRows(lane, begin + kBatch, call.in_features, next);
    Multiply(batch, sums);
    batch = next;
  }
  const auto group = static_cast<int32_t>(threadIdx.x % kWarp / 4);
  const auto row = static_cast<int32_t>(threadIdx.x % 4 * 2);
  float(&of_warp)[kFeatures][kMostRows] = shared[threadIdx.x / kWarp];
  of_warp[group][row] = sums[0];
  of_warp[group][row + 1] = sums[1];
  of_warp[group + 8][row] = sums[2];
  of_warp[group + 8][row + 1] = sums[3];
  __syncthreads();
  if (threadIdx.x < kFeatures * kMostRows) Finish<kWide>(call, shared);
}

}  // namespace

bool HasFewRows(const MatmulParams& params) {
  return params.rows <= kMostRows &&
         FitsVectors({params.x, params.weight.data}, {params.x_stride, params.weight.in_features});
}

absl::Status MatmulFewRows(const DeviceQueue& queue, const MatmulParams& params) {
  const Call call = {.x = static_cast<const uint16_t*>(params.x),
                     .x_stride = params.x_stride,
                     .weight = reinterpret_cast<const uint16_t*>(params.weight.data),
                     .bias = params.bias,
                     .out = params.out,
                     .out_stride = params.out_stride,
                     .in_features = params.weight.in_features,
                     .out_features = params.weight.out_features,
                     .rows = static_cast<int32_t>(params.rows),
                     .accumulate = params.accumulate};
  const auto blocks = static_cast<uint32_t>((call.out_features + kFeatures - 1) / kFeatures);
  const auto kernel = params.wide ? FewRowsKernel<true> : FewRowsKernel<false>;
  return ToStatus(LaunchEarly(kernel, blocks, kWarps * kWarp, 0, queue.stream(), call), "matmul");
}

}  // namespace baton::kernels::cuda
