// Scores and probabilities of query heads over one page of quantized keys (format `diffkv`).
//
// score = scale_j * (q . code_j) + zero_j * sum(q): the codes enter the multiply-adds as they are.
// Tokens are lanes: the words of kLanes tokens are transposed as 32-bit elements and every code of
// a word becomes a vector of one head dimension, shared by all heads.
#pragma once

#include <limits>

#include "kernels/cpu/exp_inl.h"
#include "kernels/cpu/isa_kernels.h"
#include "kernels/cpu/tile_inl.h"

namespace baton::kernels::cpu {

// fn.template operator()<i>() for i = 0 .. kCount - 1.
template <int kCount, int kFirst = 0, typename Function>
[[gnu::always_inline]] inline void ForEach(Function&& fn) {
  if constexpr (kFirst < kCount) {
    fn.template operator()<kFirst>();
    ForEach<kCount, kFirst + 1>(fn);
  }
}

// Scale and zero of kLanes tokens, of which the first `n` exist (the others get zeros: what lies
// there is not a number for sure), with the codes' offset moved into the zero.
template <typename V>
[[gnu::always_inline]] inline void LoadRanges(
    const std::byte* ranges, int64_t n, int32_t bits, typename V::F& scale, typename V::F& zero) {
  V::SplitF16(V::Load(reinterpret_cast<const float*>(ranges)), scale, zero);
  zero = V::Fma(scale, V::Set(static_cast<float>(1 << (bits - 1))), zero);
  if (n < V::kLanes) {
    scale = V::KeepRange(scale, 0, n);
    zero = V::KeepRange(zero, 0, n);
  }
}

// dots[h] = q[h] . codes of tokens [first, first + kLanes), two sums for each head.
template <typename V, int kBits, int kHeads>
[[gnu::always_inline]] inline void DotCodes(const QuantHeads& heads,
                                            const QuantPage& page,
                                            int32_t first,
                                            typename V::F (&dots)[kHeads][2]) {
  constexpr int kCodes = 32 / kBits;
  const int32_t row_words = page.key_unit_bytes;  // 4 threads' units of a token
  const float* q = heads.q;
  const int32_t units = heads.head_dim / (row_words * kCodes);
  for (int32_t unit = 0; unit < units; ++unit) {
    const auto* rows = reinterpret_cast<const float*>(page.key_codes) +
                       int64_t{unit * page.page_tokens + first} * row_words;
    for (int32_t word = 0; word < row_words; word += V::kLanes) {
      const int32_t columns = row_words - word < V::kLanes ? row_words - word : V::kLanes;
      typename V::F square[V::kLanes];
      for (int i = 0; i < V::kLanes; ++i) {
        const float* p = rows + i * row_words + word;
        square[i] = columns == V::kLanes ? V::Load(p) : V::LoadN(p, columns);
      }
      V::Transpose(square);
      for (int32_t column = 0; column < columns; ++column) {
        const typename V::F words = V::template PrepareCodes<kBits>(square[column]);
        ForEach<kCodes>([&]<int kCode>() {
          const typename V::F code = V::template Code<kBits, kCode * kBits>(words);
#pragma GCC unroll 8
          for (int h = 0; h < kHeads; ++h) {
            dots[h][kCode % 2] = V::Fma(V::Set(q[kCode * kHeads + h]), code, dots[h][kCode % 2]);
          }
        });
        q += kCodes * kHeads;
      }
    }
  }
}

template <typename V, int kBits, int kHeads>
void ScoreCodes(const QuantHeads& heads, const QuantPage& page) {
  typename V::F max[kHeads];
  for (int h = 0; h < kHeads; ++h) {
    max[h] = V::Set(heads.max[h]);
  }
  for (int32_t first = 0; first < page.tokens; first += V::kLanes) {
    const int64_t n = page.tokens - first < V::kLanes ? page.tokens - first : V::kLanes;
    typename V::F dots[kHeads][2];
    for (auto& dot : dots) {
      dot[0] = V::Zero();
      dot[1] = V::Zero();
    }
    DotCodes<V, kBits, kHeads>(heads, page, first, dots);
    typename V::F scale;
    typename V::F zero;
    LoadRanges<V>(page.key_ranges + 4 * first, n, kBits, scale, zero);
    const typename V::F unseen = V::Set(-std::numeric_limits<float>::infinity());
    for (int h = 0; h < kHeads; ++h) {
      const typename V::F offset = V::Mul(zero, V::Set(heads.q_sums[h]));
      typename V::F score = V::Fma(scale, V::Add(dots[h][0], dots[h][1]), offset);
      if (page.oldest > INT32_MIN) {
        score = V::SelectFrom(score, unseen, page.positions + first, page.oldest);
      }
      if (n < V::kLanes) {
        score = V::SelectRange(score, unseen, 0, n);
        V::StoreN(page.scores + h * page.score_stride + first, score, n);
      } else {
        V::Store(page.scores + h * page.score_stride + first, score);
      }
      max[h] = V::Max(max[h], score);
    }
  }
  for (int h = 0; h < kHeads; ++h) {
    heads.max[h] = V::ReduceMax(max[h]);
  }
}

template <typename V>
void QuantScores(const QuantHeads& heads, const QuantPage& page) {
  WithRows<V::kQuantHeads>(heads.heads, [&]<int kHeads>() {
    if (page.key_bits == 8) {
      ScoreCodes<V, 8, kHeads>(heads, page);
    } else {
      ScoreCodes<V, 4, kHeads>(heads, page);
    }
  });
}

template <typename V>
void QuantProbabilities(const float* scores,
                        int64_t score_stride,
                        int64_t heads,
                        int64_t tokens,
                        const float* max,
                        const float* factor,
                        bool raise,
                        float* out) {
  for (int64_t i = 0; i < tokens; i += V::kLanes) {
    const int64_t n = tokens - i < V::kLanes ? tokens - i : V::kLanes;
    typename V::F largest = raise ? V::LoadN(out + i, n) : V::Zero();
    for (int64_t h = 0; h < heads; ++h) {
      const typename V::F score = V::LoadN(scores + h * score_stride + i, n);
      const typename V::F weight = Exp2<V>(V::Sub(score, V::Set(max[h])));
      largest = V::Max(largest, V::Mul(weight, V::Set(factor[h])));
    }
    V::StoreN(out + i, largest, n);
  }
}

}  // namespace baton::kernels::cpu
