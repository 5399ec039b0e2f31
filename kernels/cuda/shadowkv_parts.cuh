// Parts of a head's attention: what a split or the value clusters give, and how parts become the
// results. They are folded in their order, so that the bits depend on the head alone.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/cuda/paged_attention_merge.cuh"
#include "kernels/cuda/paged_attention_tile.cuh"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/ptx_bf16.cuh"
#include "kernels/cuda/runtime/device_queue.h"
#include "kernels/cuda/shadowkv_checks.h"
#include "kernels/cuda/shadowkv_decode_workspace.cuh"
#include "kernels/cuda/shadowkv_device.cuh"
#include "kernels/cuda/shadowkv_fetch.cuh"
#include "kernels/cuda/shadowkv_plan.cuh"
#include "kernels/cuda/warp.cuh"
#include "kernels/kv_format/shadowkv.h"
#include "kernels/ops/shadowkv_params.h"

namespace baton::kernels::cuda::shadowkv {

// The sequences of one launch.
struct AttendCall {
  ShadowKvAttentionParams params;
  AttendScratch scratch;
  int32_t group;      // query heads of a KV head
  float score_scale;  // scale * log2(e): weights are powers of two
};

// Blocks for each head of a call: enough to give every multiprocessor, which holds `held` of them,
// work for `rounds` rounds, 1 to `most`.
inline uint32_t BlocksOfHead(const DeviceQueue& queue,
                             const ShadowKvAttentionParams& params,
                             int64_t rounds,
                             int64_t held,
                             int64_t most) {
  const int64_t pairs = params.bounds.kv_heads * params.num_sequences;
  const int64_t enough = rounds * held * queue.multiprocessors();
  return static_cast<uint32_t>(std::clamp<int64_t>((enough + pairs - 1) / pairs, 1, most));
}

// The queries of the block's KV head (y) in row `row`.
__device__ inline const uint16_t* QueriesOf(const AttendCall& call, int64_t row, int32_t head_dim) {
  return static_cast<const uint16_t*>(call.params.q) + row * call.params.q_stride +
         int64_t{blockIdx.y} * call.group * head_dim;
}

__device__ inline float* PartOf(const AttendCall& call, int64_t pair, int32_t part) {
  return call.scratch.partials + (pair * kMaxParts + part) * call.scratch.partial_floats;
}

// Writes what warp 0 has of a split.
template <int kHeadDim, int kColumnTiles>
__device__ void WritePart(int32_t group,
                          float* part,
                          const paged::Running<kHeadDim, kColumnTiles>& running) {
#pragma unroll
  for (int n = 0; n < kColumnTiles; ++n) {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const int32_t column = paged::kColumns * n + 2 * LaneInGroup() + c;
      if (column >= group) continue;
#pragma unroll
      for (int u = 0; u < kHeadDim / 64; ++u) {
        const paged::Piece<8> piece = paged::LanePiece(running, n, c, u);
        const float(&x)[8] = piece.values;
        auto* target =
            reinterpret_cast<float4*>(part + column * kHeadDim + 64 * u + 8 * LaneGroup());
        target[0] = make_float4(x[0], x[1], x[2], x[3]);
        target[1] = make_float4(x[4], x[5], x[6], x[7]);
      }
      if (LaneGroup() == 0) {
        part[group * kHeadDim + column] = running.max[n][c];
        part[group * (kHeadDim + 1) + column] = running.sum[n][c];
      }
    }
  }
}

struct ClusterWeights {
  float weights[kMaxGroup][kShadowKvMaxClusters];
};

// Weights of the clusters under one query head, whose maximum and sum go to the part. One warp.
__device__ inline void WeighClusters(
    const float* logits, int32_t clusters, float* weights, float* max_out, float* sum_out) {
  const auto lane = static_cast<int32_t>(threadIdx.x % kWarpLanes);
  float max = -INFINITY;
  for (int32_t c = lane; c < clusters; c += kWarpLanes) max = fmaxf(max, logits[c] * kLog2E);
  max = WarpMax(max);
  float sum = 0.0f;
  for (int32_t c = lane; c < clusters; c += kWarpLanes) {
    weights[c] = max == -INFINITY ? 0.0f : Exp2(logits[c] * kLog2E - max);
    sum += weights[c];
  }
  sum = WarpSum(sum);
  if (lane == 0) {
    *max_out = max;
    *sum_out = sum;
  }
}

// The part of the value clusters. All threads of the block; nobody else uses `shared` meanwhile.
template <int kHeadDim>
__device__ void AttendClusters(const AttendCall& call,
                               const HeadPlan& plan,
                               float* part,
                               ClusterWeights& shared) {
  const int32_t group = call.group;
  const int64_t line = blockIdx.z * call.params.heads + int64_t{blockIdx.y} * group;
  for (int32_t g = threadIdx.x / kWarpLanes; g < group; g += kAttendThreads / kWarpLanes) {
    WeighClusters(call.params.cluster_logits + (line + g) * call.params.cluster_stride,
                  plan.clusters,
                  shared.weights[g],
                  part + group * kHeadDim + g,
                  part + group * (kHeadDim + 1) + g);
  }
  __syncthreads();
  constexpr int32_t kPairs = kHeadDim / 2;
  const auto* values = reinterpret_cast<const uint32_t*>(plan.cluster_values);
  for (int32_t i = threadIdx.x; i < group * kPairs; i += kAttendThreads) {
    const float* weights = shared.weights[i / kPairs];
    float low = 0.0f;
    float high = 0.0f;
#pragma unroll 8
    for (int32_t c = 0; c < plan.clusters; ++c) {
      const uint32_t value = values[c * kPairs + i % kPairs];
      low = __fmaf_rn(weights[c], LowBf16(value), low);
      high = __fmaf_rn(weights[c], HighBf16(value), high);
    }
    part[2 * i] = low;
    part[2 * i + 1] = high;
  }
}

// Four values of one query head of a part.
template <int kHeadDim>
__device__ paged::Piece<4> LoadPart(const float* part, int32_t group, int32_t column, int32_t dim) {
  const float4 x = __ldcg(reinterpret_cast<const float4*>(part + column * kHeadDim + dim));
  return {.max = __ldcg(part + group * kHeadDim + column),
          .sum = __ldcg(part + group * (kHeadDim + 1) + column),
          .values = {x.x, x.y, x.z, x.w}};
}

// Writes four elements of a query head's result, after taking in what `out` holds of other keys,
// whose log-sum-exp to base 2 is prior_max.
__device__ inline void FinishPiece(uint2* out, float prior_max, paged::Piece<4>& piece) {
  if (prior_max != -INFINITY) {
    const uint2 held = *out;
    piece.Fold({.max = prior_max,
                .sum = 1.0f,
                .values = {LowBf16(held.x), HighBf16(held.x), LowBf16(held.y), HighBf16(held.y)}});
  }
  const float inverse = piece.sum > 0.0f ? 1.0f / piece.sum : 0.0f;
  *out = make_uint2(PackBf16(piece.values[0] * inverse, piece.values[1] * inverse),
                    PackBf16(piece.values[2] * inverse, piece.values[3] * inverse));
}

// Folds a head's parts and writes its results to row `row`. All threads of the block.
template <int kHeadDim>
__device__ void MergeParts(const AttendCall& call, int64_t row, int64_t pair, int32_t parts) {
  constexpr int32_t kPieces = kHeadDim / 4;  // of a query head: those of one are in one warp
  const ShadowKvAttentionParams& params = call.params;
  for (int32_t base = 0; base < call.group * kPieces; base += kAttendThreads) {
    const int32_t index = base + static_cast<int32_t>(threadIdx.x);
    const int32_t column = index / kPieces;
    const int32_t dim = index % kPieces * 4;
    const int64_t head = int64_t{blockIdx.y} * call.group + column;
    const bool used = column < call.group;
    float* lse = params.lse == nullptr || !used ? nullptr : params.lse + row * params.heads + head;
    const float prior_max = lse == nullptr ? -INFINITY : *lse * kLog2E;
    __syncwarp();  // every lane of the head has read what one of them overwrites
    if (!used) continue;
    paged::Piece<4> piece;
#pragma unroll 4
    for (int32_t part = 0; part < parts; ++part) {
      piece.Fold(LoadPart<kHeadDim>(PartOf(call, pair, part), call.group, column, dim));
    }
    auto* out =
        static_cast<uint16_t*>(params.out) + row * params.out_stride + head * kHeadDim + dim;
    FinishPiece(reinterpret_cast<uint2*>(out), prior_max, piece);
    if (lse != nullptr && dim == 0) {
      *lse = piece.sum > 0.0f ? (piece.max + log2f(piece.sum)) * kLn2 : -INFINITY;
    }
  }
}

}  // namespace baton::kernels::cuda::shadowkv
