// Brings one KV block from its pages into a tile: keys transposed, both widened to fp32.
#pragma once

#include "kernels/cpu/isa_kernels.h"

namespace baton::kernels::cpu {

// `count` 32-bit lanes of p (count may be below kLanes or not positive), zero behind them. The last
// 16-bit element of an odd head_dim is read alone.
template <typename V>
typename V::F LoadLanes(const std::byte* p, int64_t bytes) {
  constexpr int64_t kVectorBytes = 4 * V::kLanes;
  if (p != nullptr && bytes >= kVectorBytes) {
    return V::Load(reinterpret_cast<const float*>(p));
  }
  alignas(64) std::byte whole[kVectorBytes] = {};
  for (int64_t i = 0; p != nullptr && i < bytes; ++i) {
    whole[i] = p[i];
  }
  return V::Load(reinterpret_cast<const float*>(whole));
}

// Loads one 32-bit lane column of kLanes tokens: element r of the result holds lane r of every
// token.
template <typename V>
[[gnu::always_inline]] inline void LoadTransposed(const std::byte* const* tokens,
                                                  int64_t offset,
                                                  int64_t bytes,
                                                  typename V::F (&square)[V::kLanes]) {
  for (int i = 0; i < V::kLanes; ++i) {
    square[i] = LoadLanes<V>(tokens[i] == nullptr ? nullptr : tokens[i] + offset, bytes);
  }
  V::Transpose(square);
}

template <typename V>
void LoadKeysBF16(const AttentionTile& tile, const KvBlock& block, int first_token) {
  constexpr int64_t kStep = 2 * V::kLanes;
  for (int64_t d = 0; d < tile.head_dim; d += kStep) {
    typename V::F square[V::kLanes];
    LoadTransposed<V>(block.keys + first_token, 2 * d, 2 * (tile.head_dim - d), square);
    float* out = tile.keys + d * kKvBlockTokens + first_token;
    for (int i = 0; i < V::kLanes && d + 2 * i < tile.head_dim; ++i) {
      typename V::F even;
      typename V::F odd;
      V::SplitPairs(square[i], even, odd);
      V::Store(out + 2 * i * kKvBlockTokens, even);
      if (d + 2 * i + 1 < tile.head_dim) {
        V::Store(out + (2 * i + 1) * kKvBlockTokens, odd);
      }
    }
  }
}

template <typename V>
void LoadKeysF32(const AttentionTile& tile, const KvBlock& block, int first_token) {
  for (int64_t d = 0; d < tile.head_dim; d += V::kLanes) {
    typename V::F square[V::kLanes];
    LoadTransposed<V>(block.keys + first_token, 4 * d, 4 * (tile.head_dim - d), square);
    float* out = tile.keys + d * kKvBlockTokens + first_token;
    for (int i = 0; i < V::kLanes && d + i < tile.head_dim; ++i) {
      V::Store(out + i * kKvBlockTokens, square[i]);
    }
  }
}

template <typename V>
void LoadValues(const AttentionTile& tile, const KvBlock& block) {
  for (int token = 0; token < block.tokens; ++token) {
    float* out = tile.values + token * tile.width;
    for (int64_t d = 0; d < tile.width; d += V::kLanes) {
      const int64_t n = tile.head_dim - d < V::kLanes ? tile.head_dim - d : V::kLanes;
      typename V::F v = V::Zero();
      if (block.bf16 && n > 0) {
        const auto* p = reinterpret_cast<const uint16_t*>(block.values[token]) + d;
        v = n == V::kLanes ? V::LoadBF16(p) : V::LoadBF16N(p, n);
      } else if (n > 0) {
        const auto* p = reinterpret_cast<const float*>(block.values[token]) + d;
        v = n == V::kLanes ? V::Load(p) : V::LoadN(p, n);
      }
      V::Store(out + d, v);
    }
  }
}

template <typename V>
void AttentionLoad(const AttentionTile& tile, const KvBlock& block) {
  for (int token = 0; token < block.tokens; token += V::kLanes) {
    if (block.bf16) {
      LoadKeysBF16<V>(tile, block, token);
    } else {
      LoadKeysF32<V>(tile, block, token);
    }
  }
  LoadValues<V>(tile, block);
}

}  // namespace baton::kernels::cpu
