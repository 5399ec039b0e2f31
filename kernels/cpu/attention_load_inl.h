// Brings one KV block from its pages into a tile: keys transposed, both widened to fp32.
#pragma once

#include "kernels/cpu/isa_kernels.h"

namespace baton::kernels::cpu {

// kLanes 32-bit lanes of p, of which `bytes` bytes are there (possibly none or more than all lanes
// have), zero behind them.
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

// The four codes in each lane of `quads`, one per dimension and token, into rows d .. d + 3.
template <typename V>
[[gnu::always_inline]] inline void StoreQuads(typename V::F quads,
                                              typename V::F scales,
                                              int64_t dims,
                                              float* out) {
  V::Store(out, V::Mul(V::template SplitF8<0>(quads), scales));
  if (dims > 1) {
    V::Store(out + kKvBlockTokens, V::Mul(V::template SplitF8<1>(quads), scales));
  }
  if (dims > 2) {
    V::Store(out + 2 * kKvBlockTokens, V::Mul(V::template SplitF8<2>(quads), scales));
  }
  if (dims > 3) {
    V::Store(out + 3 * kKvBlockTokens, V::Mul(V::template SplitF8<3>(quads), scales));
  }
}

template <typename V>
void LoadKeysF8(const AttentionTile& tile, const KvBlock& block, int first_token) {
  constexpr int64_t kStep = 4 * V::kLanes;
  const typename V::F scales = V::Load(block.key_scales + first_token);
  for (int64_t d = 0; d < tile.head_dim; d += kStep) {
    typename V::F square[V::kLanes];
    LoadTransposed<V>(block.keys + first_token, d, tile.head_dim - d, square);
    float* out = tile.keys + d * kKvBlockTokens + first_token;
    for (int i = 0; i < V::kLanes && d + 4 * i < tile.head_dim; ++i) {
      StoreQuads<V>(square[i], scales, tile.head_dim - d - 4 * i, out + 4 * i * kKvBlockTokens);
    }
  }
}

// `n` elements of one token's values from element `d` on, zero behind them.
template <typename V>
[[gnu::always_inline]] inline typename V::F LoadValue(const KvBlock& block,
                                                      int token,
                                                      int64_t d,
                                                      int64_t n) {
  const std::byte* values = block.values[token];
  switch (block.element) {
    case KvElement::kBF16: {
      const auto* p = reinterpret_cast<const uint16_t*>(values) + d;
      return n == V::kLanes ? V::LoadBF16(p) : V::LoadBF16N(p, n);
    }
    case KvElement::kF8E4M3: {
      const auto* p = reinterpret_cast<const uint8_t*>(values) + d;
      return V::Mul(n == V::kLanes ? V::LoadF8(p) : V::LoadF8N(p, n),
                    V::Set(block.value_scales[token]));
    }
    case KvElement::kF32:
      break;
  }
  const auto* p = reinterpret_cast<const float*>(values) + d;
  return n == V::kLanes ? V::Load(p) : V::LoadN(p, n);
}

template <typename V>
void LoadValues(const AttentionTile& tile, const KvBlock& block) {
  for (int token = 0; token < block.tokens; ++token) {
    float* out = tile.values + token * tile.width;
    for (int64_t d = 0; d < tile.width; d += V::kLanes) {
      const int64_t n = tile.head_dim - d < V::kLanes ? tile.head_dim - d : V::kLanes;
      V::Store(out + d, n > 0 ? LoadValue<V>(block, token, d, n) : V::Zero());
    }
  }
}

template <typename V>
void AttentionLoadKeys(const AttentionTile& tile, const KvBlock& block) {
  for (int token = 0; token < block.tokens; token += V::kLanes) {
    switch (block.element) {
      case KvElement::kF32:
        LoadKeysF32<V>(tile, block, token);
        break;
      case KvElement::kBF16:
        LoadKeysBF16<V>(tile, block, token);
        break;
      case KvElement::kF8E4M3:
        LoadKeysF8<V>(tile, block, token);
        break;
    }
  }
}

template <typename V>
void AttentionLoad(const AttentionTile& tile, const KvBlock& block) {
  AttentionLoadKeys<V>(tile, block);
  LoadValues<V>(tile, block);
}

}  // namespace baton::kernels::cpu
