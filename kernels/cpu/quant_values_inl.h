// Weighted sums of quantized values of one page (format `diffkv`).
//
// sum_j w_j (scale_j code_j + zero_j): the scale joins the weight, the zeros are summed apart. The
// 16 words of a 64-byte run of value codes hold several tokens each and the run's lanes different
// tokens, so weights are spread into that order once per page, and sums are kept by lane until the
// last page: codes are never moved between lanes.
#pragma once

#include "kernels/cpu/exp_inl.h"
#include "kernels/cpu/isa_kernels.h"
#include "kernels/cpu/quant_scores_inl.h"
#include "kernels/cpu/tile_inl.h"

namespace baton::kernels::cpu {

// Words of a run, the unit in which value codes are worked on.
inline constexpr int kRunWords = 16;

// kPairOfWord[lane words / 4][parity][word]: which of 8 tokens the word's code of that parity
// belongs to; the lanes of a run are four token pairs, over and over.
inline constexpr int32_t kTokenOfWord[2][2][kRunWords] = {
    {{0, 0, 2, 2, 4, 4, 6, 6, 0, 0, 2, 2, 4, 4, 6, 6},
     {1, 1, 3, 3, 5, 5, 7, 7, 1, 1, 3, 3, 5, 5, 7, 7}},
    {{0, 0, 0, 0, 2, 2, 2, 2, 4, 4, 4, 4, 6, 6, 6, 6},
     {1, 1, 1, 1, 3, 3, 3, 3, 5, 5, 5, 5, 7, 7, 7, 7}}};

// Turns one head's scores of the page into weights, adds them to its sums and spreads them:
// heads.weights[eight tokens][parity][head][word of a run].
template <typename V>
[[gnu::always_inline]] inline void WeighHead(const QuantHeads& heads,
                                             const QuantPage& page,
                                             int64_t head) {
  alignas(64) float weights[64];
  float* sums = heads.sums + head * kRunWords;
  float* zero_sums = heads.zero_sums + head * kRunWords;
  typename V::F sum = V::Load(sums);
  typename V::F zero_sum = V::Load(zero_sums);
  const typename V::F max = V::Set(heads.max[head]);
  for (int32_t first = 0; first < page.page_tokens; first += V::kLanes) {
    const int64_t left = page.tokens - first;
    const int64_t n = left < 0 ? 0 : left < V::kLanes ? left : V::kLanes;
    typename V::F scale;
    typename V::F zero;
    LoadRanges<V>(page.value_ranges + 4 * first, n, page.value_bits, scale, zero);
    const float* scores = page.scores + head * page.score_stride + first;
    typename V::F weight = V::Zero();
    if (n == V::kLanes) {
      weight = Exp2<V>(V::Sub(V::Load(scores), max));
    } else if (n > 0) {
      weight = V::KeepRange(Exp2<V>(V::Sub(V::LoadN(scores, n), max)), 0, n);
    }
    sum = V::Add(sum, weight);
    zero_sum = V::Fma(weight, zero, zero_sum);
    V::Store(weights + first, V::Mul(weight, scale));
  }
  V::Store(sums, sum);
  V::Store(zero_sums, zero_sum);
  for (int32_t eight = 0; eight < page.page_tokens / 8; ++eight) {
    for (int parity = 0; parity < 2; ++parity) {
      const int32_t* index = kTokenOfWord[page.value_lane_words / 4][parity];
      float* out = heads.weights + ((eight * 2 + parity) * heads.heads + head) * kRunWords;
      for (int word = 0; word < kRunWords; word += V::kLanes) {
        V::Store(out + word, V::Pick8(weights + 8 * eight, index + word));
      }
    }
  }
}

// Two blocks (of 8 dims) of one run over all tokens: sums[block][head] += weight * code. Words of
// the run are `stride` apart from one token tile to the next.
template <typename V, int kBits, int kHeads, int kBlock>
[[gnu::always_inline]] inline void AddRun(
    const QuantHeads& heads, int32_t tiles, const float* words, int64_t stride, float* sums) {
  constexpr int kEights = kBits == 8 ? 1 : 2;  // groups of 8 tokens in a tile
  for (int word = 0; word < kRunWords; word += V::kLanes) {
    typename V::F acc[2][kHeads];
    for (int i = 0; i < 2 * kHeads; ++i) {
      acc[i / kHeads][i % kHeads] = V::Load(sums + i * kRunWords + word);
    }
    const float* weights = heads.weights + word;
    for (int32_t tile = 0; tile < tiles; ++tile) {
      const typename V::F codes =
          V::template PrepareCodes<kBits>(V::Load(words + tile * stride + word));
      ForEach<2 * kEights>([&]<int kPart>() {  // (eight, parity), as the weights lie
        constexpr int kShift = kPart % 2 * 16 + kPart / 2 * kBits;
        constexpr int kStep = kEights * kBits;
        const typename V::F even = V::template Code<kBits, kShift + kBlock * kStep>(codes);
        const typename V::F odd = V::template Code<kBits, kShift + (kBlock + 1) * kStep>(codes);
#pragma GCC unroll 8
        for (int h = 0; h < kHeads; ++h) {
          const typename V::F weight = V::Load(weights + (kPart * kHeads + h) * kRunWords);
          acc[0][h] = V::Fma(weight, even, acc[0][h]);
          acc[1][h] = V::Fma(weight, odd, acc[1][h]);
        }
      });
      weights += 2 * kEights * kHeads * kRunWords;
    }
    for (int i = 0; i < 2 * kHeads; ++i) {
      V::Store(sums + i * kRunWords + word, acc[i / kHeads][i % kHeads]);
    }
  }
}

// values[run][block of a word][head][word] over all runs of a token tile.
template <typename V, int kBits, int kHeads>
void AddCodes(const QuantHeads& heads, const QuantPage& page) {
  constexpr int kTileTokens = kBits == 8 ? 8 : 16;
  constexpr int kBlocks = 16 / kBits / (kTileTokens / 8);  // blocks of 8 dims in a word
  for (int h = 0; h < kHeads; ++h) {
    WeighHead<V>(heads, page, h);
  }
  const int32_t tiles = (page.tokens + kTileTokens - 1) / kTileTokens;
  const int32_t tile_words = heads.head_dim * kTileTokens * kBits / 32;
  const auto* words = reinterpret_cast<const float*>(page.value_codes);
  float* sums = heads.values;
  for (int32_t run = 0; run < tile_words; run += kRunWords) {
    ForEach<kBlocks / 2>([&]<int kPair>() {
      AddRun<V, kBits, kHeads, 2 * kPair>(heads, tiles, words + run, tile_words, sums);
      sums += int64_t{2} * kHeads * kRunWords;
    });
  }
}

template <typename V>
void QuantValues(const QuantHeads& heads, const QuantPage& page) {
  WithRows<V::kQuantHeads>(heads.heads, [&]<int kHeads>() {
    if (page.value_bits == 8) {
      AddCodes<V, 8, kHeads>(heads, page);
    } else if (page.value_bits == 4) {
      AddCodes<V, 4, kHeads>(heads, page);
    } else {
      AddCodes<V, 2, kHeads>(heads, page);
    }
  });
}

}  // namespace baton::kernels::cpu
