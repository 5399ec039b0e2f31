// Merging in diffkv_attention: of the warps of a block at the end of a split, and of a head's
// splits.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/cuda/diffkv_attention_plan.cuh"
#include "kernels/cuda/diffkv_page_attention.cuh"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/warp.cuh"
#include "kernels/ops/diffkv_params.h"

namespace baton::kernels::cuda::diffkv {

// Gives a warp's softmax to the one that adds them up: sums of a head's lanes, each of which has
// seen other tokens, and of its columns.
template <int kDim, bool kPaired>
__device__ void GiveShare(const DiffKvSoftmax<kDim, kPaired>& softmax,
                          WarpShare<kDim, kPaired>& share) {
  const int32_t lane = threadIdx.x % 32;
#pragma unroll
  for (int c = 0; c < softmax.kHeads; ++c) {
    const int32_t head = DiffKvPlanes<kPaired>::Head(c);
    float weights = softmax.weights[c];
    float zeros = softmax.zeros[c];
#pragma unroll
    for (int step = 4; step < 32; step *= 2) {
      weights += __shfl_xor_sync(0xffffffffu, weights, step);
      zeros += __shfl_xor_sync(0xffffffffu, zeros, step);
    }
    if (lane < 4) {
      share.max[head] = softmax.max[c];
      share.weights[head] = weights;
      share.zeros[head] = zeros;
    }
    float* values = share.values + head * share.kStride + lane / 4;
#pragma unroll
    for (int i = 0; i < kDim / 8; ++i) {
      const float* columns = softmax.values[i / 2] + i % 2 * 2;
      values[8 * i] = kPaired ? columns[0] + columns[1] : columns[c];
    }
  }
  __syncwarp();
}

// One warp: adds up the shares of all in the order of warps, and writes a split's partial result,
// in which zeros are accounted for. Heads in a loop: code that is seldom executed has to be short.
template <int kDim, bool kPaired>
__device__ void TakeShares(const WarpShare<kDim, kPaired> (&shares)[kConsumers],
                           const Columns& columns,
                           const Slot& slot,
                           const Workspace& workspace) {
  constexpr int kPairs = kDim / 64;  // of dims, of a lane
  const int32_t lane = threadIdx.x % 32;
  const float unit = DiffKvValueUnit(2 * kPairs * lane / 8 % 2);
#pragma unroll 1
  for (int32_t head = 0; head < columns.count; ++head) {
    float max = shares[0].max[head];
#pragma unroll
    for (int w = 1; w < kConsumers; ++w) max = fmaxf(max, shares[w].max[head]);
    float weights = 0.0f;
    float zeros = 0.0f;
    float2 values[kPairs] = {};
#pragma unroll
    for (int w = 0; w < kConsumers; ++w) {
      const WarpShare<kDim, kPaired>& share = shares[w];
      const float factor = Exp2(share.max[head] - max);
      weights = __fmaf_rn(share.weights[head], factor, weights);
      zeros = __fmaf_rn(share.zeros[head], factor, zeros);
      const auto* own = reinterpret_cast<const float2*>(share.values + head * share.kStride);
#pragma unroll
      for (int i = 0; i < kPairs; ++i) {
        const float2 pair = own[kPairs * lane + i];
        values[i].x = __fmaf_rn(pair.x, factor, values[i].x);
        values[i].y = __fmaf_rn(pair.y, factor, values[i].y);
      }
    }
    float* partial = workspace.partial(slot.row, columns.begin + head, slot.split);
    if (lane == 0) *reinterpret_cast<float2*>(partial) = {max, weights};
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      reinterpret_cast<float2*>(partial)[1 + kPairs * lane + i] = {
          __fmaf_rn(values[i].x, unit, zeros), __fmaf_rn(values[i].y, unit, zeros)};
    }
  }
}

// One warp, after its partial result: the head if this was the last of its splits.
__device__ inline DoneHead CountSplit(const Slot& slot, int32_t heads, Counters& counters) {
  DoneHead done = {.row = slot.row, .head = slot.head, .splits = 0};
  __syncwarp();
  if (threadIdx.x % 32 == 0) {
    uint32_t& counter = counters.splits_done[slot.row * heads + slot.head];
    __threadfence();
    if (atomicAdd(&counter, 1u) + 1 == static_cast<uint32_t>(slot.splits)) {
      counter = 0;
      done.splits = slot.splits;
      __threadfence();
    }
  }
  return done;
}

// The result of one query head from the partial ones of its splits, and from what `out` holds of
// other keys. One warp.
template <int kDim>
__device__ void MergeSplits(const DiffKvAttentionParams& params,
                            const Workspace& workspace,
                            int32_t row_index,
                            int32_t head,
                            int32_t splits) {
  static_assert(kMaxSplits == 32, "a lane has a split");
  constexpr int kOwn = kDim / 32;
  const DiffKvAttentionRow& row = params.rows[row_index];
  const int32_t lane = threadIdx.x % 32;
  const float* partials = workspace.partial(row_index, head, 0);
  const bool has = lane < splits;
  const float others = row.lse == nullptr ? -INFINITY : row.lse[head] * kLog2E;
  const float own_max = has ? __ldcg(partials + lane * (kDim + 2)) : kDiffKvNoScore;
  const float max = fmaxf(WarpMax(own_max), others);
  const float factor = has ? Exp2(own_max - max) : 0.0f;
  const float found = WarpSum(has ? __ldcg(partials + lane * (kDim + 2) + 1) * factor : 0.0f);
  const float prior = Exp2(others - max);
  const float sum = found + prior;
  float values[kOwn] = {};
#pragma unroll 4
  for (int32_t split = 0; split < splits; ++split) {
    const float weight = __shfl_sync(0xffffffffu, factor, split);
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const float value = __ldcg(partials + split * (kDim + 2) + 2 + 32 * i + lane);
      values[i] = __fmaf_rn(value, weight, values[i]);
    }
  }
  __nv_bfloat16* out =
      static_cast<__nv_bfloat16*>(params.out) + row.row * params.out_stride + head * kDim;
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    if (prior > 0.0f) values[i] += __bfloat162float(out[32 * i + lane]) * prior;
    out[32 * i + lane] = __float2bfloat16_rn(sum > 0.0f ? values[i] / sum : 0.0f);
  }
  if (lane == 0) {
    const float lse = sum > 0.0f ? max + log2f(sum) : -INFINITY;
    workspace.lse(params.num_rows, row_index, head) = lse;
    if (row.lse != nullptr) row.lse[head] = lse * kLn2;
  }
}

}  // namespace baton::kernels::cuda::diffkv
