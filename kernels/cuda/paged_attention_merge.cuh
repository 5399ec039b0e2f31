// Merging of attention over parts of a row's keys: of the warps of a block, of splits, and with
// what stands in the output.
//
// Splits are folded in their order with the same operations whether their results come from the
// workspace or from the block itself, so that the bits do not tell.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/bf16.cuh"
#include "kernels/cuda/paged_attention_ends.cuh"
#include "kernels/cuda/paged_attention_tile.cuh"
#include "kernels/cuda/paged_attention_work.cuh"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/warp.cuh"

namespace baton::kernels::cuda::paged {

// Warps that compute, the first of a block; the next one loads.
inline constexpr int32_t kConsumerWarps = 4;
inline constexpr int32_t kConsumers = kConsumerWarps * kWarpLanes;

__device__ inline void SyncConsumers() { NamedBarrier(1, kConsumers); }

// The factor of weights relative to `max` when they are taken relative to `largest`.
__device__ inline float Rescale(float max, float largest) {
  return max == -INFINITY ? 0.0f : Exp2(max - largest);
}

// Some of a head's values with what they are relative to. Starts as attention over no key.
template <int kCount>
struct Piece {
  float max = -INFINITY;
  float sum = 0.0f;
  float values[kCount] = {};

  // Takes in attention over other keys.
  __device__ void Fold(const Piece& other) {
    const float largest = fmaxf(max, other.max);
    const float own = Rescale(max, largest);
    const float others = Rescale(other.max, largest);
    max = largest;
    sum = __fmaf_rn(other.sum, others, sum * own);
    for (int i = 0; i < kCount; ++i) {
      values[i] = __fmaf_rn(other.values[i], others, values[i] * own);
    }
  }
};

// What the computing warps share.
template <int kHeadDim, int kColumnTiles>
struct MergeArea {
  static constexpr int kRowTiles = kHeadDim / 16;

  float4 out[2][kRowTiles][kWarpLanes];                // of two warps, a lane's in its place
  float4 folded[kColumnTiles][kRowTiles][kWarpLanes];  // earlier splits of the item; warp 0 alone
  float max[kConsumerWarps][kColumnTiles * kColumns];
  float sum[kConsumerWarps][kColumnTiles * kColumns];
};

template <int kRowTiles>
__device__ void StoreOut(const float (&out)[kRowTiles][4], float4 (&area)[kRowTiles][kWarpLanes]) {
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m) {
    area[m][threadIdx.x % kWarpLanes] = make_float4(out[m][0], out[m][1], out[m][2], out[m][3]);
  }
}

template <int kRowTiles>
__device__ void AddOut(const float4 (&area)[kRowTiles][kWarpLanes], float (&out)[kRowTiles][4]) {
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m) {
    const float4 other = area[m][threadIdx.x % kWarpLanes];
    out[m][0] += other.x;
    out[m][1] += other.y;
    out[m][2] += other.z;
    out[m][3] += other.w;
  }
}

// Takes a warp's results relative to the block's maxima, and gives it the block's sums.
template <int kHeadDim, int kColumnTiles>
__device__ void ShareMaxima(int32_t warp,
                            MergeArea<kHeadDim, kColumnTiles>& area,
                            Running<kHeadDim, kColumnTiles>& running) {
  for (int n = 0; n < kColumnTiles; ++n) {
    for (int c = 0; c < 2; ++c) {
      const float sum = SumAcrossGroups(running.sum[n][c]);
      if (LaneGroup() == 0) {
        const int32_t column = kColumns * n + 2 * LaneInGroup() + c;
        area.max[warp][column] = running.max[n][c];
        area.sum[warp][column] = sum;
      }
    }
  }
  SyncConsumers();
  for (int n = 0; n < kColumnTiles; ++n) {
    for (int c = 0; c < 2; ++c) {
      const int32_t column = kColumns * n + 2 * LaneInGroup() + c;
      float largest = -INFINITY;
      for (int w = 0; w < kConsumerWarps; ++w) largest = fmaxf(largest, area.max[w][column]);
      float sum = 0.0f;
      for (int w = 0; w < kConsumerWarps; ++w) {
        sum = __fmaf_rn(area.sum[w][column], Rescale(area.max[w][column], largest), sum);
      }
      const float own = Rescale(running.max[n][c], largest);
      running.max[n][c] = largest;
      running.sum[n][c] = sum;
      for (int m = 0; m < kHeadDim / 16; ++m) {
        running.out[n][m][c] *= own;
        running.out[n][m][2 + c] *= own;
      }
    }
  }
}

// Adds up the warps' results in warp 0: (0 + 2) + (1 + 3). All computing warps; before the next
// call's first wait nobody writes what this one reads.
template <int kHeadDim, int kColumnTiles>
__device__ void MergeWarps(int32_t warp,
                           MergeArea<kHeadDim, kColumnTiles>& area,
                           Running<kHeadDim, kColumnTiles>& running) {
  ShareMaxima(warp, area, running);
#pragma unroll
  for (int n = 0; n < kColumnTiles; ++n) {
    if (n > 0) SyncConsumers();
    if (warp >= 2) StoreOut(running.out[n], area.out[warp - 2]);
    SyncConsumers();
    if (warp < 2) AddOut(area.out[warp], running.out[n]);
    if (warp == 1) StoreOut(running.out[n], area.out[1]);
    SyncConsumers();
    if (warp == 0) AddOut(area.out[1], running.out[n]);
  }
}

// Maxima and sums of the splits that lie folded in MergeArea.
template <int kColumnTiles>
struct FoldedSplits {
  float max[kColumnTiles][2];
  float sum[kColumnTiles][2];
};

// Folds a split's results into those of the splits before it (none: `first`); `running` gets the
// results over all of them. Warp 0 alone.
template <int kHeadDim, int kColumnTiles>
__device__ void FoldSplit(bool first,
                          MergeArea<kHeadDim, kColumnTiles>& area,
                          FoldedSplits<kColumnTiles>& folded,
                          Running<kHeadDim, kColumnTiles>& running) {
  const int32_t lane = threadIdx.x % kWarpLanes;
#pragma unroll
  for (int n = 0; n < kColumnTiles; ++n) {
    float own[2];
    float others[2];
    for (int c = 0; c < 2; ++c) {
      const float max = first ? -INFINITY : folded.max[n][c];
      const float largest = fmaxf(max, running.max[n][c]);
      own[c] = Rescale(max, largest);
      others[c] = Rescale(running.max[n][c], largest);
      running.max[n][c] = folded.max[n][c] = largest;
      const float sum = first ? 0.0f : folded.sum[n][c];
      running.sum[n][c] = __fmaf_rn(running.sum[n][c], others[c], sum * own[c]);
      folded.sum[n][c] = running.sum[n][c];
    }
#pragma unroll
    for (int m = 0; m < kHeadDim / 16; ++m) {
      const float4 part = first ? make_float4(0, 0, 0, 0) : area.folded[n][m][lane];
      const float before[4] = {part.x, part.y, part.z, part.w};
      for (int i = 0; i < 4; ++i) {
        running.out[n][m][i] =
            __fmaf_rn(running.out[n][m][i], others[i % 2], before[i] * own[i % 2]);
      }
    }
    StoreOut(running.out[n], area.folded[n]);
  }
}

// The maximum (to base 2) of what stands in the output of a row's head: -inf if nothing is merged.
__device__ inline float PriorMax(const Call& call, int32_t row, int32_t head) {
  return call.params.merge ? call.params.lse[row * call.params.heads + head] * kLog2E : -INFINITY;
}

// Writes a row's results of one head from `dim` on, and with dim 0 its log-sum-exp, after merging
// them with what stands there. Everyone has read the head's PriorMax before.
template <int kCount>
__device__ void Finish(const Call& call,
                       int32_t row,
                       int32_t head,
                       int32_t dim,
                       float prior_max,
                       Piece<kCount>& piece) {
  static_assert(kCount % 2 == 0);
  const PagedAttentionParams& params = call.params;
  auto* out =
      reinterpret_cast<uint32_t*>(static_cast<uint16_t*>(params.out) + row * params.out_stride +
                                  head * params.pages.layout.head_dim + dim);
  if (prior_max != -INFINITY) {
    Piece<kCount> prior = {.max = prior_max, .sum = 1.0f};
    for (int i = 0; i < kCount; i += 2) {
      prior.values[i] = LowBf16(out[i / 2]);
      prior.values[i + 1] = HighBf16(out[i / 2]);
    }
    piece.Fold(prior);
  }
  const float inverse = piece.sum > 0.0f ? 1.0f / piece.sum : 0.0f;
  for (int i = 0; i < kCount; i += 2) {
    out[i / 2] = PackBf16(piece.values[i] * inverse, piece.values[i + 1] * inverse);
  }
  if (params.lse != nullptr && dim == 0) {
    params.lse[row * params.heads + head] =
        piece.sum > 0.0f ? (piece.max + log2f(piece.sum)) * kLn2 : -INFINITY;
  }
}

// Eight values of one head of the lane: elements 8 u to 8 u + 7 of Running::Value.
template <int kHeadDim, int kColumnTiles>
__device__ Piece<8> LanePiece(const Running<kHeadDim, kColumnTiles>& running, int n, int c, int u) {
  Piece<8> piece = {.max = running.max[n][c], .sum = running.sum[n][c]};
#pragma unroll
  for (int i = 0; i < 8; ++i) piece.values[i] = running.Value(n, c, 8 * u + i);
  return piece;
}

// Writes the results of an item that is all of its row's keys. Warp 0 alone.
template <int kHeadDim, int kColumnTiles>
__device__ void FinishItem(const Call& call,
                           const Item& item,
                           const Running<kHeadDim, kColumnTiles>& running) {
#pragma unroll
  for (int n = 0; n < kColumnTiles; ++n) {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const int32_t column = kColumns * n + 2 * LaneInGroup() + c;
      const int32_t head = item.kv_head * call.group + column;
      const bool used = column < call.group;
      const float prior_max = used ? PriorMax(call, item.row, head) : -INFINITY;
      __syncwarp();  // every lane of the head has read what one of them overwrites
#pragma unroll
      for (int u = 0; used && u < kHeadDim / 64; ++u) {
        Piece<8> piece = LanePiece(running, n, c, u);
        Finish(call, item.row, head, 64 * u + 8 * LaneGroup(), prior_max, piece);
      }
    }
  }
}

// Floats of a split's results: values [group, head_dim], maxima [group], sums [group].
__host__ __device__ constexpr int64_t PartialFloats(int64_t group, int64_t head_dim) {
  return (group * (head_dim + 2) + 3) / 4 * 4;
}
template <int kHeadDim>
__device__ float* PartialOf(const Call& call, int32_t slot) {
  return call.partials + slot * PartialFloats(call.group, kHeadDim);
}

// Warp 0 alone.
template <int kHeadDim, int kColumnTiles>
__device__ void WritePartial(const Call& call,
                             const Item& item,
                             const Running<kHeadDim, kColumnTiles>& running) {
  float* partial = PartialOf<kHeadDim>(call, item.slot + item.split);
#pragma unroll
  for (int n = 0; n < kColumnTiles; ++n) {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const int32_t column = kColumns * n + 2 * LaneInGroup() + c;
      if (column >= call.group) continue;
#pragma unroll
      for (int u = 0; u < kHeadDim / 64; ++u) {
        const Piece<8> piece = LanePiece(running, n, c, u);
        const float(&x)[8] = piece.values;
        auto* target =
            reinterpret_cast<float4*>(partial + column * kHeadDim + 64 * u + 8 * LaneGroup());
        __stcg(target, make_float4(x[0], x[1], x[2], x[3]));
        __stcg(target + 1, make_float4(x[4], x[5], x[6], x[7]));
      }
      if (LaneGroup() == 0) {
        __stcg(partial + call.group * kHeadDim + column, running.max[n][c]);
        __stcg(partial + call.group * (kHeadDim + 1) + column, running.sum[n][c]);
      }
    }
  }
}

// Some values of one head of a split.
template <int kHeadDim, int kCount>
__device__ Piece<kCount> LoadPiece(const Call& call, int32_t slot, int32_t column, int32_t dim) {
  const float* partial = PartialOf<kHeadDim>(call, slot);
  Piece<kCount> piece = {.max = __ldcg(partial + call.group * kHeadDim + column),
                         .sum = __ldcg(partial + call.group * (kHeadDim + 1) + column)};
  const auto* values = reinterpret_cast<const float4*>(partial + column * kHeadDim + dim);
#pragma unroll
  for (int i = 0; i < kCount; i += 4) {
    const float4 x = __ldcg(values + i / 4);
    piece.values[i] = x.x;
    piece.values[i + 1] = x.y;
    piece.values[i + 2] = x.z;
    piece.values[i + 3] = x.w;
  }
  return piece;
}

// Folds the splits of a row and head, kCount values of a head by each thread, and writes
// the results. All computing warps.
template <int kHeadDim, int kCount>
__device__ void MergePieces(const Call& call, const CutHead& item) {
  constexpr int32_t kPieces = kHeadDim / kCount;  // of a head: those of one head are in one warp
  constexpr int32_t kAtOnce = 8;
  for (int32_t base = 0; base < call.group * kPieces; base += kConsumers) {
    const int32_t index = base + static_cast<int32_t>(threadIdx.x);
    const int32_t column = index / kPieces;
    const int32_t dim = index % kPieces * kCount;
    const int32_t head = item.kv_head * call.group + column;
    const bool used = column < call.group;
    const float prior_max = used ? PriorMax(call, item.row, head) : -INFINITY;
    __syncwarp();  // every lane of the head has read what one of them overwrites
    if (!used) continue;
    Piece<kCount> piece;
    for (int32_t split = 0; split < item.splits; split += kAtOnce) {
      Piece<kCount> parts[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (split + i < item.splits) {
          parts[i] = LoadPiece<kHeadDim, kCount>(call, item.slot + split + i, column, dim);
        }
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (split + i < item.splits) piece.Fold(parts[i]);
      }
    }
    Finish(call, item.row, head, dim, prior_max, piece);
  }
}

// As few rounds of reads as there can be.
template <int kHeadDim>
__device__ void MergeSplits(const Call& call, const CutHead& item) {
  if (call.group * (kHeadDim / 4) <= kConsumers) {
    MergePieces<kHeadDim, 4>(call, item);
  } else {
    MergePieces<kHeadDim, 8>(call, item);
  }
}

}  // namespace baton::kernels::cuda::paged
