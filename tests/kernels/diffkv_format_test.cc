// Page layout and order of codes of KV format `diffkv`.
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "kernels/core/buffer.h"
#include "kernels/kv_format/diffkv.h"
#include "kernels/ops/diffkv_params.h"
#include "kernels/ops/op_table.h"
#include "kernels/reference/reference_ops.h"
#include "tests/kernels/support/backends.h"

namespace baton::kernels {
namespace {

constexpr DiffKvTier kTiers[] = {{8, 8}, {8, 4}, {4, 4}, {4, 2}};

TEST(DiffKvFormatTest, SegmentsOfHeadDim128) {
  const DiffKvPageLayout high = {128, {8, 4}};
  EXPECT_EQ(high.page_tokens(), 32);
  EXPECT_EQ(high.key_scales(), 4096u);
  EXPECT_EQ(high.value_codes(), 4224u);
  EXPECT_EQ(high.value_scales(), 6272u);
  EXPECT_EQ(high.scores(), 6400u);
  EXPECT_EQ(high.positions(), 6528u);
  const DiffKvPageLayout low = {128, {4, 2}};
  EXPECT_EQ(low.page_tokens(), 64);
  EXPECT_EQ(low.key_scales(), 4096u);
  EXPECT_EQ(low.value_codes(), 4352u);
  EXPECT_EQ(low.value_scales(), 6400u);
  EXPECT_EQ(low.scores(), 6656u);
  EXPECT_EQ(low.positions(), 6912u);
  EXPECT_EQ(low.end(), low.page_bytes());
}

// Marks the bits of every code of a segment; each must be marked once.
template <typename BitOf>
void ExpectBijection(const DiffKvPageLayout& layout, int32_t bits, const BitOf& bit_of) {
  const auto codes =
      static_cast<size_t>(layout.page_tokens()) * static_cast<size_t>(layout.head_dim);
  std::vector<bool> taken(codes * static_cast<size_t>(bits), false);
  for (int32_t token = 0; token < layout.page_tokens(); ++token) {
    for (int32_t dim = 0; dim < layout.head_dim; ++dim) {
      const size_t bit = bit_of(token, dim);
      ASSERT_EQ(bit % static_cast<size_t>(bits), 0u);
      for (size_t b = bit; b < bit + static_cast<size_t>(bits); ++b) {
        ASSERT_LT(b, taken.size()) << token << " " << dim;
        ASSERT_FALSE(taken[b]) << token << " " << dim;
        taken[b] = true;
      }
    }
  }
}

TEST(DiffKvFormatTest, EveryCodeHasItsOwnBits) {
  for (const int32_t head_dim : {64, 128}) {
    for (const DiffKvTier& tier : kTiers) {
      SCOPED_TRACE(testing::Message()
                   << "K" << tier.key_bits << "V" << tier.value_bits << " head_dim " << head_dim);
      const DiffKvPageLayout layout = {head_dim, tier};
      ExpectBijection(layout, tier.key_bits, [&](int32_t token, int32_t dim) {
        return layout.key_bit(token, dim);
      });
      ExpectBijection(layout, tier.value_bits, [&](int32_t token, int32_t dim) {
        return layout.value_bit(token, dim);
      });
    }
  }
}

// Positions worked out by hand from the description in diffkv.h.
TEST(DiffKvFormatTest, KeyPositionsDoneByHand) {
  // 8 bits, head_dim 128: [2][32][4][16]. Dim 50 is thread 1's element 18: unit 1, byte 2.
  EXPECT_EQ((DiffKvPageLayout{128, {8, 4}}.key_bit(5, 50)), (((1 * 32 + 5) * 4 + 1) * 16 + 2) * 8u);
  // 4 bits, head_dim 128: [64][4][16]. Dim 127 is thread 3's element 31: high half of byte 15.
  EXPECT_EQ((DiffKvPageLayout{128, {4, 2}}.key_bit(63, 127)), 64u * 64 * 8 - 4);
  // 4 bits, head_dim 64: [64][4][8]. Dim 17 is thread 1's element 1: high half of byte 0.
  EXPECT_EQ((DiffKvPageLayout{64, {4, 2}}.key_bit(2, 17)), ((2 * 4 + 1) * 8) * 8 + 4u);
  // 8 bits, head_dim 64: [24][4][16]. Dim 33 is thread 2's element 1.
  EXPECT_EQ((DiffKvPageLayout{64, {8, 8}}.key_bit(23, 33)), ((23 * 4 + 2) * 16 + 1) * 8u);
}

TEST(DiffKvFormatTest, ValuePositionsDoneByHand) {
  // 4 bits, head_dim 128: token 16 + 13 is tile 1, token pair 2 of +8, odd; dim 64 + 27 is dim tile
  // 1, block 3, dim 3 of it: lane 3 * 4 + 2, pair 3 * 2 + 1 = word 1's pair 3, high half.
  EXPECT_EQ((DiffKvPageLayout{128, {8, 4}}.value_bit(29, 91)),
            (((1 * 2 + 1) * 32 + 14) * 4 + 1) * 32 + 16 + 12u);
  // 2 bits, head_dim 128: token 48 + 4 is tile 3, pair 2 of +0, even; dim 127 is block 15, dim 7:
  // lane 30, pair 30 = word 3's pair 6.
  EXPECT_EQ((DiffKvPageLayout{128, {4, 2}}.value_bit(52, 127)), ((3 * 32 + 30) * 4 + 3) * 32 + 12u);
  // 2 bits, head_dim 64: 8 bytes a lane. Token 9 is pair 0 of +8, odd; dim 32 is block 4, dim 0:
  // lane 0, pair 9 = word 1's pair 1, high half.
  EXPECT_EQ((DiffKvPageLayout{64, {4, 2}}.value_bit(9, 32)), 1 * 32 + 16 + 2u);
  // 8 bits, head_dim 64: token 23 is tile 2, pair 3, odd; dim 63 is block 7, dim 7: lane 31, pair
  // 7 = word 3's pair 1, high half.
  EXPECT_EQ((DiffKvPageLayout{64, {8, 8}}.value_bit(23, 63)), ((2 * 32 + 31) * 4 + 3) * 32 + 24u);
}

TEST(DiffKvFormatTest, ColumnsHoldEverySplitOfTheTokens) {
  for (const int32_t head_dim : {64, 128}) {
    const DiffKvGeometry geometry = {.kv_heads = 1, .head_dim = head_dim};
    for (const int32_t tokens : {1, 31, 32, 33, 64, 65, 95, 200, 1000}) {
      for (int32_t high = 0; high <= tokens; ++high) {
        ASSERT_LE(
            geometry.pages_for(kDiffKvHigh, high) + geometry.pages_for(kDiffKvLow, tokens - high),
            geometry.columns_for(tokens));
      }
    }
  }
}

// One token appended to an empty head by the op, and its page by hand.
TEST(DiffKvFormatTest, BytesOfAPageDoneByHand) {
  const OpTable& ops = ReferenceOps();
  const TestContext context(ops, 1);
  const DiffKvGeometry geometry = {.kv_heads = 1, .head_dim = 64};
  Buffer pool(2 * geometry.page_bytes());
  std::memset(pool.data(), 0xa5, pool.size());
  std::vector<float> k(64);
  std::vector<float> v(64);
  for (size_t i = 0; i < 64; ++i) {
    k[i] = static_cast<float>(i) * 255.0f / 64.0f;
    v[i] = static_cast<float>(i % 16);
  }
  int32_t table[2] = {-1, -1};
  int32_t counts[2] = {0, 0};
  const int32_t ids[] = {1};
  DiffKvLease lease = {.ids = ids, .count = 1};
  DiffKvAction action;
  DiffKvAppendRow row = {.layer = {.page_table = table, .token_counts = counts, .columns = 2},
                         .position = 7,
                         .sweep = false,
                         .lease = &lease,
                         .actions = &action};
  const DiffKvPages pages = {.base = pool.data(), .geometry = geometry};
  ASSERT_TRUE(
      ops.diffkv_take_pages(*context, {.rows = &row, .layers = 1, .sequences = 1, .pages = pages})
          .ok());
  ASSERT_TRUE(ops.diffkv_append(*context,
                                {.k = k.data(),
                                 .v = v.data(),
                                 .stride = 64,
                                 .rows = &row,
                                 .num_rows = 1,
                                 .pages = pages})
                  .ok());
  EXPECT_EQ(table[0], 1);
  std::vector<std::byte> want(geometry.page_bytes());
  // Keys: the largest is 63 * 255 / 64, so the scale is 63 / 64, which fp16 has.
  // Token 0 of [1][32][4][16]: 16 dims per thread, dim i at byte i.
  for (size_t i = 0; i < 64; ++i) {
    const double exact = static_cast<double>(i) * 255.0 / 64.0 / 0.984375;
    want[i] = static_cast<std::byte>(std::lround(exact));
  }
  const auto put16 = [&](size_t offset, uint16_t bits) { std::memcpy(&want[offset], &bits, 2); };
  put16(2048, 0x3be0);      // scale 0.984375 = 2^-1 * (1 + 992/1024)
  put16(2048 + 2, 0x0000);  // zero
  // Values of token 0: lanes 0, 4, 8 .. 28 (dim % 8), word w has blocks 2 w (bits 0) and 2 w + 1
  // (bits 8); the other nibbles belong to other tokens.
  for (size_t n = 0; n < 8; ++n) {
    for (size_t word = 0; word < 4; ++word) {
      const size_t at = 2048 + 128 + (n * 4 * 4 + word) * 4;
      want[at] = static_cast<std::byte>(n);
      want[at + 1] = static_cast<std::byte>(8 + n);
    }
  }
  put16(2048 + 128 + 1024, 0x3c00);  // scale 1
  const float score = 0.0f;
  const int32_t position = 7;
  std::memcpy(&want[2048 + 128 + 1024 + 128], &score, 4);
  std::memcpy(&want[2048 + 128 + 1024 + 256], &position, 4);
  for (size_t i = 0; i < want.size(); ++i) {
    ASSERT_EQ(pool.data()[geometry.page_bytes() + i], want[i]) << "byte " << i;
  }
}

}  // namespace
}  // namespace baton::kernels
