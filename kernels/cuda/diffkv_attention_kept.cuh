// What attention keeps of a page in steps that score: its tokens' weights, as halves, and what they
// are relative to. Probabilities are made of them when log-sum-exps are known
// (diffkv_attention_scores.cuh).
#pragma once

#include <cuda_fp16.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/diffkv_attention_plan.cuh"
#include "kernels/cuda/diffkv_page_attention.cuh"
#include "kernels/kv_format/diffkv.h"
#include "kernels/ops/diffkv_params.h"

namespace baton::kernels::cuda::diffkv {

// Weights of a slot's head in its row's scratch. A token's columns lie side by side, those without
// a query head too, so that an instruction of a warp writes whole lines. Weights are at most 64;
// what halves lose of those below 2^-14 is nothing in a probability.
struct KeptWeights {
  float* references;  // [page][column], to base 2
  __half* weights;    // [token][column], high tokens before low

  // Where those of `head` are when a token has `columns` of them.
  __device__ static KeptWeights Of(const DiffKvAttentionParams& params,
                                   const DiffKvAttentionRow& row,
                                   int32_t head,
                                   int32_t columns) {
    const int64_t floats = Floats(row.probability_stride, columns);
    float* const begin = params.scratch + row.scratch_begin + head * floats;
    return {
        .references = begin,
        .weights = reinterpret_cast<__half*>(begin + References(row.probability_stride) * columns)};
  }

  // What a head with at most `tokens` tokens takes; a token's columns are aligned to their size.
  __host__ __device__ static constexpr int64_t Floats(int64_t tokens, int32_t columns) {
    return (References(tokens) + (tokens + 1) / 2) * columns;
  }

 private:
  static constexpr int32_t kLeastPageTokens = DiffKvPageTokens({8, 8});

  // Pages of both tiers, at most.
  __host__ __device__ static constexpr int64_t References(int64_t tokens) {
    return tokens / kLeastPageTokens + 2;
  }
};

// Whether rows have room for what is kept.
constexpr bool KeptWeightsFit() {
  for (const int32_t group : {1, 2, 3, 4, 5, 7, 8, 9, 16, 17}) {
    const int32_t columns = KeptColumns(group);
    const int32_t slot_heads = (group + columns - 1) / columns;
    for (const int64_t tokens : {1, 2, 23, 24, 25, 47, 1000, 131072}) {
      const DiffKvGeometry geometry = {.kv_heads = 1, .head_dim = 64, .tiers = {{4, 2}, {4, 2}}};
      const int64_t floats = slot_heads * KeptWeights::Floats(tokens, columns);
      if (floats > DiffKvScratchFloats(geometry, group, tokens)) return false;
    }
  }
  return true;
}
static_assert(KeptWeightsFit());

// Keeps a page's weights, which are relative to `references`.
template <bool kPaired, int kTiles, int kHeads>
__device__ inline void KeepWeights(const Plan& plan,
                                   const Slot& slot,
                                   const float (&references)[kHeads],
                                   const DiffKvScores<kTiles, kPaired>& weights) {
  const DiffKvAttentionRow& row = plan.params.rows[slot.row];
  if (row.probabilities == nullptr) return;
  const int32_t columns = kPaired ? plan.kept_columns : kDiffKvColumns;
  const int32_t column = DiffKvPlanes<kPaired>::Head(0);
  if (column >= columns) return;
  const KeptWeights kept = KeptWeights::Of(plan.params, row, slot.head, columns);
  const int32_t first = DiffKvToken(0, 0);
  __half* const out = kept.weights + int64_t{slot.first_token + first} * columns + column;
#pragma unroll
  for (int i = 0; i < 2 * kTiles; ++i) {
    if (first + 8 * i >= slot.tokens) break;
    const float(&own)[kHeads] = weights[i / 2][i % 2];
    if constexpr (kPaired) {
      out[8 * i * columns] = __float2half_rn(own[0]);
    } else {
      *reinterpret_cast<__half2*>(out + 8 * i * columns) = __floats2half2_rn(own[0], own[1]);
    }
  }
  if (first > 0) return;
  float* const at = kept.references + int64_t{slot.index} * columns + column;
#pragma unroll
  for (int c = 0; c < kHeads; ++c) at[c] = references[c];
}

}  // namespace baton::kernels::cuda::diffkv
