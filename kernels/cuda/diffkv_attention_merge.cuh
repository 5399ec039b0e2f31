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

// Adds up the sums of a column's lanes, each of which has seen other tokens.
template <int kDim>
__device__ void AddLanes(DiffKvSoftmax<kDim>& softmax) {
#pragma unroll
  for (int c = 0; c < 2; ++c) {
#pragma unroll
    for (int step = 4; step < 32; step *= 2) {
      softmax.weights[c] += __shfl_xor_sync(0xffffffffu, softmax.weights[c], step);
      softmax.zeros[c] += __shfl_xor_sync(0xffffffffu, softmax.zeros[c], step);
    }
  }
}

// Where in a share the lane's element `i` of fragment `f` is.
template <int kDim>
__device__ int32_t ShareIndex(int f, int i) {
  const int32_t lane = threadIdx.x % 32;
  return (lane % 4 * 2 + i % 2) * WarpShare<kDim>::kStride + 16 * f + i / 2 * 8 + lane / 4;
}

template <int kDim>
__device__ void GiveShare(const DiffKvSoftmax<kDim>& softmax, WarpShare<kDim>& share) {
  const int32_t lane = threadIdx.x % 32;
#pragma unroll
  for (int f = 0; f < kDim / 16; ++f) {
#pragma unroll
    for (int i = 0; i < 4; ++i) share.values[ShareIndex<kDim>(f, i)] = softmax.values[f][i];
  }
  if (lane < 4) {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      share.max[2 * lane + c] = softmax.max[c];
      share.weights[2 * lane + c] = softmax.weights[c];
      share.zeros[2 * lane + c] = softmax.zeros[c];
    }
  }
}

// Adds the other warps' shares to the first warp's own, in the order of warps.
template <int kDim, bool kPaired>
__device__ void TakeShares(const WarpShare<kDim> (&shares)[kConsumers - 1],
                           DiffKvSoftmax<kDim>& softmax) {
  const int32_t column = threadIdx.x % 4 * 2;
  float factors[kConsumers][2];
#pragma unroll
  for (int c = 0; c < 2; ++c) {
    float max = softmax.max[c];
    for (const WarpShare<kDim>& share : shares) max = fmaxf(max, share.max[column + c]);
    if constexpr (kPaired) max = fmaxf(max, __shfl_xor_sync(0xffffffffu, max, 2));
    factors[0][c] = Exp2(softmax.max[c] - max);
    softmax.max[c] = max;
    softmax.weights[c] *= factors[0][c];
    softmax.zeros[c] *= factors[0][c];
#pragma unroll
    for (int w = 0; w < kConsumers - 1; ++w) {
      const float factor = Exp2(shares[w].max[column + c] - max);
      softmax.weights[c] = __fmaf_rn(shares[w].weights[column + c], factor, softmax.weights[c]);
      softmax.zeros[c] = __fmaf_rn(shares[w].zeros[column + c], factor, softmax.zeros[c]);
      factors[w + 1][c] = factor;
    }
  }
#pragma unroll
  for (int f = 0; f < kDim / 16; ++f) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float& value = softmax.values[f][i];
      value *= factors[0][i % 2];
#pragma unroll
      for (int w = 0; w < kConsumers - 1; ++w) {
        value = __fmaf_rn(shares[w].values[ShareIndex<kDim>(f, i)], factors[w + 1][i % 2], value);
      }
    }
  }
}

// Adds paired columns up, whose maxima are the same by now.
template <int kDim>
__device__ void AddTwins(DiffKvSoftmax<kDim>& softmax) {
#pragma unroll
  for (int c = 0; c < 2; ++c) {
    softmax.weights[c] += __shfl_xor_sync(0xffffffffu, softmax.weights[c], 2);
    softmax.zeros[c] += __shfl_xor_sync(0xffffffffu, softmax.zeros[c], 2);
  }
#pragma unroll
  for (int f = 0; f < kDim / 16; ++f) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      softmax.values[f][i] += __shfl_xor_sync(0xffffffffu, softmax.values[f][i], 2);
    }
  }
}

// One warp: writes a split's partial result, in which zeros are accounted for.
template <int kDim>
__device__ void WritePartial(const Columns& columns,
                             const Slot& slot,
                             const Workspace& workspace,
                             const DiffKvSoftmax<kDim>& softmax) {
  const int32_t lane = threadIdx.x % 32;
#pragma unroll
  for (int c = 0; c < 2; ++c) {
    const int32_t column = lane % 4 * 2 + c;
    if (column >= columns.count) continue;
    float* partial = workspace.partial(slot.row, columns.begin + column, slot.split);
    if (lane < 4) {
      partial[0] = softmax.max[c];
      partial[1] = softmax.weights[c];
    }
#pragma unroll
    for (int f = 0; f < kDim / 16; ++f) {
      partial[2 + 16 * f + lane / 4] = softmax.values[f][c] + softmax.zeros[c];
      partial[2 + 16 * f + 8 + lane / 4] = softmax.values[f][2 + c] + softmax.zeros[c];
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
