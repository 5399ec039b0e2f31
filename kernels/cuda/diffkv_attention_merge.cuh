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

// What a lane has of a warp's softmax at the end of a split, of its heads: the values of rows
// lane / 4 + 8 {0, 1} of every 16 dims, and the head's sums.
template <int kDim, bool kPaired>
struct LaneShare {
  static constexpr int kHeads = DiffKvPlanes<kPaired>::kHeads;

  float values[kHeads][kDim / 16][2];
  float max[kHeads];
  float weights[kHeads];
  float zeros[kHeads];
};

// Adds up the sums of a head's lanes, each of which has seen other tokens, and its columns.
template <int kDim, bool kPaired>
__device__ LaneShare<kDim, kPaired> ShareOf(const DiffKvSoftmax<kDim, kPaired>& softmax) {
  LaneShare<kDim, kPaired> share;
#pragma unroll
  for (int c = 0; c < share.kHeads; ++c) {
    share.max[c] = softmax.max[c];
    share.weights[c] = softmax.weights[c];
    share.zeros[c] = softmax.zeros[c];
#pragma unroll
    for (int step = 4; step < 32; step *= 2) {
      share.weights[c] += __shfl_xor_sync(0xffffffffu, share.weights[c], step);
      share.zeros[c] += __shfl_xor_sync(0xffffffffu, share.zeros[c], step);
    }
#pragma unroll
    for (int f = 0; f < kDim / 16; ++f) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float* columns = softmax.values[f] + 2 * half;
        share.values[c][f][half] =
            (kPaired ? columns[0] + columns[1] : columns[c]) * DiffKvValueUnit(half);
      }
    }
  }
  return share;
}

// Where in a warp's share a lane's value is.
template <int kDim, bool kPaired>
__device__ int32_t ShareIndex(int own, int fragment, int half) {
  return DiffKvPlanes<kPaired>::Head(own) * WarpShare<kDim, kPaired>::kStride + 16 * fragment +
         8 * half + static_cast<int32_t>(threadIdx.x) % 32 / 4;
}

template <int kDim, bool kPaired>
__device__ void GiveShare(const LaneShare<kDim, kPaired>& own, WarpShare<kDim, kPaired>& share) {
#pragma unroll
  for (int c = 0; c < own.kHeads; ++c) {
#pragma unroll
    for (int f = 0; f < kDim / 16; ++f) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        share.values[ShareIndex<kDim, kPaired>(c, f, half)] = own.values[c][f][half];
      }
    }
    if (threadIdx.x % 32 < 4) {
      const int32_t head = DiffKvPlanes<kPaired>::Head(c);
      share.max[head] = own.max[c];
      share.weights[head] = own.weights[c];
      share.zeros[head] = own.zeros[c];
    }
  }
}

// Adds the other warps' shares to the first warp's own, in the order of warps.
template <int kDim, bool kPaired>
__device__ void TakeShares(const WarpShare<kDim, kPaired> (&shares)[kConsumers - 1],
                           LaneShare<kDim, kPaired>& own) {
#pragma unroll
  for (int c = 0; c < own.kHeads; ++c) {
    const int32_t head = DiffKvPlanes<kPaired>::Head(c);
    float factors[kConsumers];
    float max = own.max[c];
    for (const auto& share : shares) max = fmaxf(max, share.max[head]);
    factors[0] = Exp2(own.max[c] - max);
    own.max[c] = max;
    own.weights[c] *= factors[0];
    own.zeros[c] *= factors[0];
#pragma unroll
    for (int w = 0; w < kConsumers - 1; ++w) {
      const float factor = Exp2(shares[w].max[head] - max);
      own.weights[c] = __fmaf_rn(shares[w].weights[head], factor, own.weights[c]);
      own.zeros[c] = __fmaf_rn(shares[w].zeros[head], factor, own.zeros[c]);
      factors[w + 1] = factor;
    }
#pragma unroll
    for (int f = 0; f < kDim / 16; ++f) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float& value = own.values[c][f][half];
        value *= factors[0];
#pragma unroll
        for (int w = 0; w < kConsumers - 1; ++w) {
          const float other = shares[w].values[ShareIndex<kDim, kPaired>(c, f, half)];
          value = __fmaf_rn(other, factors[w + 1], value);
        }
      }
    }
  }
}

// One warp: writes a split's partial result, in which zeros are accounted for.
template <int kDim, bool kPaired>
__device__ void WritePartial(const Columns& columns,
                             const Slot& slot,
                             const Workspace& workspace,
                             const LaneShare<kDim, kPaired>& share) {
  const int32_t lane = threadIdx.x % 32;
#pragma unroll
  for (int c = 0; c < share.kHeads; ++c) {
    const int32_t head = DiffKvPlanes<kPaired>::Head(c);
    if (head >= columns.count) continue;
    float* partial = workspace.partial(slot.row, columns.begin + head, slot.split);
    if (lane < 4) {
      partial[0] = share.max[c];
      partial[1] = share.weights[c];
    }
#pragma unroll
    for (int f = 0; f < kDim / 16; ++f) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        partial[2 + 16 * f + 8 * half + lane / 4] = share.values[c][f][half] + share.zeros[c];
      }
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
