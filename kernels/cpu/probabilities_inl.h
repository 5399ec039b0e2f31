// Softmax probabilities without values, in two sweeps over the keys: maxima and sums, then the
// probabilities. Shares the tiles of attention_fold_inl.h.
#pragma once

#include "kernels/cpu/attention_fold_inl.h"
#include "kernels/cpu/exp_inl.h"
#include "kernels/cpu/isa_kernels.h"
#include "kernels/cpu/tile_inl.h"

namespace baton::kernels::cpu {

// What kRows lines see of a block; returns the end of the last token seen, 0 if none is.
template <typename V, int kRows>
[[gnu::always_inline]] inline int64_t FindVisible(const AttentionTile& tile,
                                                  const KvBlock& block,
                                                  int64_t line,
                                                  VisibleTokens (&visible)[kRows]) {
  int64_t end = 0;
  for (int r = 0; r < kRows; ++r) {
    visible[r] = Visible<V>(tile, block, line + r);
    if (visible[r].begin < visible[r].end && visible[r].end > end) {
      end = visible[r].end;
    }
  }
  return end;
}

template <typename V>
void AttentionMeasure(const AttentionTile& tile, const KvBlock& block) {
  ForTiles<V>(tile.lines, [&]<int kRows>(int64_t line) {
    VisibleTokens visible[kRows];
    const int64_t end = FindVisible<V, kRows>(tile, block, line, visible);
    if (end == 0) return;
    float correction[kRows + V::kLanes] = {};
    ScoreTile<V, kRows>(tile, line, end);
    SoftmaxTile<V, kRows>(tile, visible, line, end, correction);
  });
}

template <typename V>
void AttentionRaise(const AttentionTile& tile,
                    const KvBlock& block,
                    const float* factors,
                    int64_t group,
                    float* out,
                    int64_t out_stride) {
  ForTiles<V>(tile.lines, [&]<int kRows>(int64_t line) {
    VisibleTokens visible[kRows];
    const int64_t end = FindVisible<V, kRows>(tile, block, line, visible);
    if (end == 0) return;
    ScoreTile<V, kRows>(tile, line, end);
    for (int r = 0; r < kRows; ++r) {
      float* scores = tile.scores + r * kKvBlockTokens;
      const typename V::F max = V::Set(tile.row_max[line + r]);
      const typename V::F factor = V::Set(factors[line + r]);
      MaskAndMax<V>(scores, visible[r], end, 0.0f);
      float* row = out + (line + r) / group * out_stride;
      for (int64_t token = 0; token < visible[r].end; token += V::kLanes) {
        const int64_t left = visible[r].end - token;
        const int64_t n = left < V::kLanes ? left : V::kLanes;
        const typename V::F weight = Exp2<V>(V::Sub(V::Load(scores + token), max));
        const typename V::F raised = V::Max(V::Mul(weight, factor), V::LoadN(row + token, n));
        V::StoreN(row + token, raised, n);
      }
    }
  });
}

}  // namespace baton::kernels::cpu
