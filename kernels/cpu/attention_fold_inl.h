// Blockwise attention with an online softmax (Milakov and Gimelshein, arXiv 1805.02867; the
// blocking is that of FlashAttention, arXiv 2205.14135), in base 2.
//
// Invariance: everything that a line's result depends on is the line's own query, its key range and
// the KV blocks, which start at multiples of kKvBlockTokens. A token that the line does not see has
// weight exactly 0, and a block of which it sees nothing multiplies its sums by exactly 1, so
// neither the other lines of the tile nor the first and last block of the tile leave a trace.
#pragma once

#include <limits>

#include "kernels/cpu/exp_inl.h"
#include "kernels/cpu/isa_kernels.h"
#include "kernels/cpu/tile_inl.h"

namespace baton::kernels::cpu {

// The maximum of a line that has seen no key yet: finite, so that differences stay defined.
inline constexpr float kNoKeyYet = -1e30f;

template <typename V>
void AttentionBegin(const AttentionTile& tile, int64_t line, const float* q, float scale) {
  // Scores in base 2: 2^(score * log2 e) = e^score.
  const typename V::F factor = V::Set(scale * 1.44269504f);
  for (int64_t d = 0; d < tile.width; d += V::kLanes) {
    const int64_t n = tile.head_dim - d < V::kLanes ? tile.head_dim - d : V::kLanes;
    const typename V::F v = n > 0 ? V::LoadN(q + d, n) : V::Zero();
    V::Store(tile.q + line * tile.width + d, V::Mul(v, factor));
    V::Store(tile.sum_values + line * tile.width + d, V::Zero());
  }
  tile.row_max[line] = kNoKeyYet;
  V::Store(tile.row_sum + line * V::kLanes, V::Zero());
}

// The tokens [begin, end) of a block that one line sees; empty when begin >= end.
struct VisibleTokens {
  int64_t begin;
  int64_t end;
};

template <typename V>
[[gnu::always_inline]] inline VisibleTokens Visible(const AttentionTile& tile,
                                                    const KvBlock& block,
                                                    int64_t line) {
  const int64_t begin = int64_t{tile.first_key[line]} - block.position;
  const int64_t end = int64_t{tile.last_key[line]} + 1 - block.position;
  return {begin < 0 ? 0 : begin, end > block.tokens ? block.tokens : end};
}

// scores[r][t] = q[r] . key[t] for the block's first `end` tokens, rounded up to whole panels.
template <typename V, int kRows>
[[gnu::always_inline]] inline void ScoreTile(const AttentionTile& tile, int64_t line, int64_t end) {
  for (int64_t token = 0; token < end; token += 2 * V::kLanes) {
    typename V::F sums[kRows][2];
    for (auto& row_sums : sums) {
      row_sums[0] = V::Zero();
      row_sums[1] = V::Zero();
    }
    MultiplyAdd<V, LoadF32<V>, kRows, 1>(tile.q + line * tile.width,
                                         tile.width,
                                         tile.head_dim,
                                         tile.keys + token,
                                         kKvBlockTokens,
                                         0,
                                         sums);
    for (int r = 0; r < kRows; ++r) {
      V::Store(tile.scores + r * kKvBlockTokens + token, sums[r][0]);
      V::Store(tile.scores + r * kKvBlockTokens + token + V::kLanes, sums[r][1]);
    }
  }
}

// Hides unseen tokens (score -inf) and returns the largest seen score, or `max` if that is larger.
template <typename V>
[[gnu::always_inline]] inline float MaskAndMax(float* scores,
                                               VisibleTokens visible,
                                               int64_t end,
                                               float max) {
  typename V::F largest = V::Set(max);
  for (int64_t token = 0; token < end; token += V::kLanes) {
    typename V::F score = V::Load(scores + token);
    if (token < visible.begin || token + V::kLanes > visible.end) {
      const int64_t begin = visible.begin - token;
      const int64_t last = visible.end - token;
      score = V::SelectRange(score,
                             V::Set(-std::numeric_limits<float>::infinity()),
                             begin < 0 ? 0 : (begin > V::kLanes ? V::kLanes : begin),
                             last < 0 ? 0 : (last > V::kLanes ? V::kLanes : last));
      V::Store(scores + token, score);
    }
    largest = V::Max(largest, score);
  }
  return V::ReduceMax(largest);
}

// Turns a tile's scores into weights relative to each line's new maximum, updates the lines' sums
// and sets correction[r] = 2^(old maximum - new maximum).
template <typename V, int kRows>
[[gnu::always_inline]] inline void SoftmaxTile(const AttentionTile& tile,
                                               const VisibleTokens* visible,
                                               int64_t line,
                                               int64_t end,
                                               float* correction) {
  constexpr int kVectors = (kRows + V::kLanes - 1) / V::kLanes;
  for (int r = 0; r < kRows; ++r) {
    float* scores = tile.scores + r * kKvBlockTokens;
    const float max = MaskAndMax<V>(scores, visible[r], end, tile.row_max[line + r]);
    correction[r] = tile.row_max[line + r] - max;
    tile.row_max[line + r] = max;
  }
  for (int i = 0; i < kVectors; ++i) {
    V::Store(correction + i * V::kLanes, Exp2<V>(V::Load(correction + i * V::kLanes)));
  }
  for (int r = 0; r < kRows; ++r) {
    float* scores = tile.scores + r * kKvBlockTokens;
    const typename V::F max = V::Set(tile.row_max[line + r]);
    float* row_sum = tile.row_sum + (line + r) * V::kLanes;
    typename V::F sum = V::Mul(V::Load(row_sum), V::Set(correction[r]));
    for (int64_t token = 0; token < end; token += V::kLanes) {
      const typename V::F weight = Exp2<V>(V::Sub(V::Load(scores + token), max));
      V::Store(scores + token, weight);
      sum = V::Add(sum, weight);
    }
    V::Store(row_sum, sum);
  }
}

// sum_values[r] = sum_values[r] * correction[r] + weights[r] . values over the first `end` tokens.
template <typename V, int kRows>
[[gnu::always_inline]] inline void ValueTile(const AttentionTile& tile,
                                             int64_t line,
                                             int64_t end,
                                             const float* correction) {
  for (int64_t d = 0; d < tile.width; d += 2 * V::kLanes) {
    float* out = tile.sum_values + line * tile.width + d;
    typename V::F sums[kRows][2];
    for (int r = 0; r < kRows; ++r) {
      const typename V::F factor = V::Set(correction[r]);
      sums[r][0] = V::Mul(V::Load(out + r * tile.width), factor);
      sums[r][1] = V::Mul(V::Load(out + r * tile.width + V::kLanes), factor);
    }
    MultiplyAdd<V, LoadF32<V>, kRows, 1>(
        tile.scores, kKvBlockTokens, end, tile.values + d, tile.width, 0, sums);
    for (int r = 0; r < kRows; ++r) {
      V::Store(out + r * tile.width, sums[r][0]);
      V::Store(out + r * tile.width + V::kLanes, sums[r][1]);
    }
  }
}

template <typename V, int kRows>
void FoldLines(const AttentionTile& tile, const KvBlock& block, int64_t line) {
  VisibleTokens visible[kRows];
  int64_t end = 0;
  for (int r = 0; r < kRows; ++r) {
    visible[r] = Visible<V>(tile, block, line + r);
    if (visible[r].begin < visible[r].end && visible[r].end > end) {
      end = visible[r].end;
    }
  }
  if (end == 0) {
    return;
  }
  float correction[kRows + V::kLanes] = {};
  ScoreTile<V, kRows>(tile, line, end);
  SoftmaxTile<V, kRows>(tile, visible, line, end, correction);
  ValueTile<V, kRows>(tile, line, end, correction);
}

template <typename V>
void AttentionFold(const AttentionTile& tile, const KvBlock& block) {
  ForTiles<V>(tile.lines, [&]<int kRows>(int64_t line) { FoldLines<V, kRows>(tile, block, line); });
}

// Adding +0 turns -0 into +0: the sign of a zero could tell how many unseen tokens were added.
template <typename V>
void AttentionFinish(const AttentionTile& tile, int64_t line, float* out) {
  const typename V::F sum = V::Set(V::ReduceAdd(V::Load(tile.row_sum + line * V::kLanes)));
  const float* values = tile.sum_values + line * tile.width;
  for (int64_t d = 0; d < tile.head_dim; d += V::kLanes) {
    const int64_t n = tile.head_dim - d < V::kLanes ? tile.head_dim - d : V::kLanes;
    V::StoreN(out + d, V::Add(V::Div(V::Load(values + d), sum), V::Zero()), n);
  }
}

}  // namespace baton::kernels::cpu
