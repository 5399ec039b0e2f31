// Sizes of a set of sequences in format `diffkv`.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "kernels/kv_format/diffkv.h"
#include "tests/gpu/bench/bench_case.h"

namespace baton::kernels::cuda {

// Sequences of one length, all of whose heads store the same number of tokens in each tier.
struct DiffKvLoad {
  DiffKvGeometry geometry;
  int32_t layers = 1;
  int32_t rows = 1;
  int32_t tokens = 0;       // of a head, both tiers
  double high_share = 1.0;  // of the tokens
  int32_t growth = 0;       // tokens that may be appended

  int64_t sequences() const { return int64_t{layers} * rows; }
  int32_t tier_tokens(int32_t tier) const {
    const auto high = static_cast<int32_t>(std::lround(high_share * tokens));
    return tier == kDiffKvHigh ? high : tokens - high;
  }
  int32_t tier_pages(int32_t tier) const { return geometry.pages_for(tier, tier_tokens(tier)); }
  // Pages that a head may take: a step adds a token to one of its tiers.
  int32_t spare_pages() const {
    return geometry.pages_for(kDiffKvHigh, growth) + geometry.pages_for(kDiffKvLow, growth);
  }
  int32_t columns() const {
    return tier_pages(kDiffKvHigh) + tier_pages(kDiffKvLow) + spare_pages();
  }
  // Of all sequences, spare ones included.
  int64_t pages() const { return sequences() * geometry.kv_heads * columns(); }
  // What attention reads of a layer: codes, scales and zeros of the tokens, each once.
  double read_bytes() const {
    double bytes = 0.0;
    for (int32_t tier = 0; tier < kDiffKvTiers; ++tier) {
      const DiffKvTier& bits = geometry.tiers[tier];
      const double ranges = 8.0;  // scale and zero of the key and of the value
      const double token = geometry.head_dim * (bits.key_bits + bits.value_bits) / 8.0 + ranges;
      bytes += token * tier_tokens(tier);
    }
    return bytes * rows * geometry.kv_heads;
  }
  size_t pool_bytes() const { return static_cast<size_t>(pages()) * geometry.page_bytes(); }
};

inline DiffKvLoad DiffKvLoadOf(const BenchShape& shape, double high_share, int32_t growth = 0) {
  return {.geometry = {.kv_heads = shape.kv_heads, .head_dim = shape.head_dim},
          .layers = BenchCase::kLayers,
          .rows = shape.rows,
          .tokens = shape.tokens,
          .high_share = high_share,
          .growth = growth};
}

}  // namespace baton::kernels::cuda
