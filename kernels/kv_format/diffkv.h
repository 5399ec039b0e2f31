// KV format `diffkv`: keys after RoPE and values, quantized per token and KV head, in unified pages
// (DiffKV, arXiv 2412.03131, sections 4 and 5).
//
// A page belongs to one (sequence, layer, KV head, tier); every tier has the same page size, so one
// pool serves them all, and pages carry no pointers: the bytes on the wire are the bytes in the
// pool. Segments of a page (version 1), each starting at a multiple of 128 bytes:
//   key codes, key scale and zero (fp16 pairs), value codes, value scale and zero (fp16 pairs),
//   score (fp32 per token), position (u32 per token).
// Unused slots and the bytes between segments are zero from the first write to a page on.
//
// Order of codes, made for 16-byte loads into the fragments of m16n8k16 matrix instructions. A code
// never crosses a byte; bit 0 is the lowest of the first byte.
//   Keys [units][page_tokens][4][unit]: the head dimension is split between 4 threads, thread t
//   owns dims [t * d/4, (t + 1) * d/4) in ascending order, cut into units of 16 bytes (a single one
//   of 8 bytes for 4-bit keys of head_dim 64); inside a unit, lowest bits first. Values [token
//   tiles][dim tiles][32 lanes][lane words of 32 bits]: a tile is 16 tokens (8 when values have 8
//   bits, since 24 tokens are no multiple of 16) times 64 dims (128 for 2-bit values of head_dim
//   128); a lane holds 16 bytes (8 for 2-bit values of head_dim 64). Lane l owns, for every block b
//   of 8 dims of the tile, dim 8 b + l/4 of tokens 2 (l%4) + {0, 1, 8, 9} (without 8 and 9 in tiles
//   of 8 tokens). A token pair (even, odd) is one register of the instruction: its even token lies
//   in the low half of a word, its odd token at the same bits of the high half; the pairs of a lane
//   follow each other as (block, +0 before +8), 16 / bits pairs to a word.
#pragma once

#include <cstddef>
#include <cstdint>

namespace baton::kernels {

// Bits of a key and of a value element of one precision tier.
struct DiffKvTier {
  int32_t key_bits = 8;
  int32_t value_bits = 4;

  constexpr bool operator==(const DiffKvTier&) const = default;
};

// Tiers of a sequence: the high tier holds significant tokens, the low tier the others.
inline constexpr int32_t kDiffKvTiers = 2;
inline constexpr int32_t kDiffKvHigh = 0;
inline constexpr int32_t kDiffKvLow = 1;

// Tokens of a page: 24 (K8V8), 32 (K8V4), 48 (K4V4), 64 (K4V2) for head_dim 64 and 128; 0 for a
// tier that has no page layout.
constexpr int32_t DiffKvPageTokens(DiffKvTier tier) {
  if (tier == DiffKvTier{8, 8}) return 24;
  if (tier == DiffKvTier{8, 4}) return 32;
  if (tier == DiffKvTier{4, 4}) return 48;
  if (tier == DiffKvTier{4, 2}) return 64;
  return 0;
}

// 7,168 for head_dim 128, 4,096 for head_dim 64; 0 for others.
constexpr size_t DiffKvPageBytes(int32_t head_dim) {
  return head_dim == 128 ? 7168 : head_dim == 64 ? 4096 : 0;
}

// Where things are in a page of one tier. Offsets in bytes.
struct DiffKvPageLayout {
  static constexpr uint16_t kVersion = 1;
  static constexpr size_t kSegmentAlignment = 128;

  int32_t head_dim = 0;
  DiffKvTier tier;

  constexpr bool operator==(const DiffKvPageLayout&) const = default;

  constexpr int32_t page_tokens() const { return DiffKvPageTokens(tier); }
  constexpr size_t page_bytes() const { return DiffKvPageBytes(head_dim); }
  constexpr size_t key_codes() const { return 0; }
  constexpr size_t key_scales() const { return Align(CodeBytes(tier.key_bits)); }
  constexpr size_t value_codes() const { return key_scales() + Align(tokens() * 4); }
  constexpr size_t value_scales() const {
    return value_codes() + Align(CodeBytes(tier.value_bits));
  }
  constexpr size_t scores() const { return value_scales() + Align(tokens() * 4); }
  constexpr size_t positions() const { return scores() + Align(tokens() * 4); }
  constexpr size_t end() const { return positions() + Align(tokens() * 4); }

  // Bytes of one thread's run of a token's key that lie together.
  constexpr int32_t key_unit_bytes() const {
    const int32_t run = head_dim / 4 * tier.key_bits / 8;
    return run < 16 ? run : 16;
  }
  // Where in the key segment the code of (token, dim) starts, in bits.
  constexpr size_t key_bit(int32_t token, int32_t dim) const {
    const int32_t run = head_dim / 4;
    const int32_t unit_codes = key_unit_bytes() * 8 / tier.key_bits;
    const int32_t unit = dim % run / unit_codes;
    const int32_t index = (unit * page_tokens() + token) * 4 + dim / run;
    const int32_t bit = index * key_unit_bytes() * 8 + dim % unit_codes * tier.key_bits;
    return static_cast<size_t>(bit);
  }

  constexpr int32_t value_tile_tokens() const { return tier.value_bits == 8 ? 8 : 16; }
  constexpr int32_t value_lane_words() const {
    return tier.value_bits == 2 && head_dim == 64 ? 2 : 4;
  }
  // A lane has two tokens per pair, value_tile_tokens / 8 pairs per block of 8 dims.
  constexpr int32_t value_tile_dims() const {
    return 8 * value_lane_words() * (16 / tier.value_bits) / (value_tile_tokens() / 8);
  }
  // Where in the value segment the code of (token, dim) starts, in bits.
  constexpr size_t value_bit(int32_t token, int32_t dim) const {
    const int32_t in_tile = token % value_tile_tokens();
    const int32_t block_dim = dim % value_tile_dims();
    const int32_t tile =
        token / value_tile_tokens() * (head_dim / value_tile_dims()) + dim / value_tile_dims();
    const int32_t lane = block_dim % 8 * 4 + in_tile % 8 / 2;
    const int32_t pair = block_dim / 8 * (value_tile_tokens() / 8) + in_tile / 8;
    const int32_t word_pairs = 16 / tier.value_bits;
    const int32_t word = (tile * 32 + lane) * value_lane_words() + pair / word_pairs;
    const int32_t bit = word * 32 + in_tile % 2 * 16 + pair % word_pairs * tier.value_bits;
    return static_cast<size_t>(bit);
  }

 private:
  constexpr size_t tokens() const { return static_cast<size_t>(page_tokens()); }
  constexpr size_t CodeBytes(int32_t bits) const {
    return tokens() * static_cast<size_t>(head_dim) * static_cast<size_t>(bits) / 8;
  }
  static constexpr size_t Align(size_t bytes) {
    return (bytes + kSegmentAlignment - 1) / kSegmentAlignment * kSegmentAlignment;
  }
};

static_assert(DiffKvPageLayout{128, {8, 4}}.end() <= DiffKvPageBytes(128));
static_assert(DiffKvPageLayout{128, {4, 2}}.end() <= DiffKvPageBytes(128));
static_assert(DiffKvPageLayout{128, {4, 4}}.end() <= DiffKvPageBytes(128));
static_assert(DiffKvPageLayout{128, {8, 8}}.end() <= DiffKvPageBytes(128));
static_assert(DiffKvPageLayout{64, {8, 4}}.end() <= DiffKvPageBytes(64));
static_assert(DiffKvPageLayout{64, {4, 2}}.end() <= DiffKvPageBytes(64));
static_assert(DiffKvPageLayout{64, {4, 4}}.end() <= DiffKvPageBytes(64));
static_assert(DiffKvPageLayout{64, {8, 8}}.end() <= DiffKvPageBytes(64));

// What all sequences of one batch share: the model's heads and the two tiers.
struct DiffKvGeometry {
  int32_t kv_heads = 0;
  int32_t head_dim = 0;
  DiffKvTier tiers[kDiffKvTiers] = {{8, 4}, {4, 2}};

  constexpr DiffKvPageLayout layout(int32_t tier) const { return {head_dim, tiers[tier]}; }
  constexpr size_t page_bytes() const { return DiffKvPageBytes(head_dim); }
  // Pages of one tier that hold `tokens` tokens.
  constexpr int32_t pages_for(int32_t tier, int64_t tokens) const {
    const int32_t page_tokens = DiffKvPageTokens(tiers[tier]);
    return static_cast<int32_t>((tokens + page_tokens - 1) / page_tokens);
  }
  // Columns of a head's page table that hold any split of `tokens` tokens: the worst split needs
  // one page more than all tokens in the tier with the smallest pages.
  constexpr int32_t columns_for(int64_t tokens) const {
    const int32_t high = pages_for(kDiffKvHigh, tokens);
    const int32_t low = pages_for(kDiffKvLow, tokens);
    return (high > low ? high : low) + 1;
  }
};

}  // namespace baton::kernels
