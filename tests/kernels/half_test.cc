#include "kernels/core/half.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>

#include "kernels/core/dtype.h"

namespace baton::kernels {
namespace {

TEST(HalfTest, EveryBF16SurvivesTheRoundTrip) {
  for (uint32_t bits = 0; bits <= 0xffffu; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    const float wide = BF16ToF32(half);
    const bool signaling = std::isnan(wide) && (bits & 0x40u) == 0;
    EXPECT_EQ(F32ToBF16(wide), signaling ? half | 0x40u : half) << bits;
  }
}

TEST(HalfTest, BF16RoundsToNearestTiesToEven) {
  EXPECT_EQ(F32ToBF16(std::bit_cast<float>(0x3f808000u)), 0x3f80u);  // tie, stays even
  EXPECT_EQ(F32ToBF16(std::bit_cast<float>(0x3f818000u)), 0x3f82u);  // tie, goes to even
  EXPECT_EQ(F32ToBF16(std::bit_cast<float>(0x3f808001u)), 0x3f81u);  // above the tie
  EXPECT_EQ(F32ToBF16(std::bit_cast<float>(0x3f807fffu)), 0x3f80u);  // below the tie
  EXPECT_EQ(F32ToBF16(std::bit_cast<float>(0x7f7fffffu)), 0x7f80u);  // largest float: infinity
}

// Value of an IEEE binary16 by its definition.
double HalfByDefinition(uint16_t bits) {
  const int exponent = (bits >> 10) & 0x1f;
  const int mantissa = bits & 0x3ff;
  const double magnitude =
      exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
  return (bits & 0x8000u) != 0 ? -magnitude : magnitude;
}

TEST(HalfTest, EveryFiniteF16HasItsDefinedValue) {
  for (uint32_t bits = 0; bits <= 0xffffu; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    const float wide = F16ToF32(half);
    if (((bits >> 10) & 0x1fu) != 0x1fu) {
      EXPECT_EQ(double{wide}, HalfByDefinition(half)) << bits;
      EXPECT_EQ(std::signbit(wide), (bits & 0x8000u) != 0) << bits;
    } else if ((bits & 0x3ffu) == 0) {
      EXPECT_TRUE(std::isinf(wide)) << bits;
    } else {
      EXPECT_TRUE(std::isnan(wide)) << bits;
    }
  }
}

TEST(HalfTest, EveryF16SurvivesTheRoundTripInEveryRounding) {
  for (uint32_t bits = 0; bits <= 0xffffu; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    const float wide = F16ToF32(half);
    if (std::isnan(wide)) {
      EXPECT_TRUE(std::isnan(F16ToF32(F32ToF16(wide)))) << bits;
      continue;
    }
    EXPECT_EQ(F32ToF16(wide), half) << bits;
    EXPECT_EQ(F32ToF16Up(wide), half) << bits;
    EXPECT_EQ(F32ToF16Down(wide), half) << bits;
  }
}

// Between every two neighbouring fp16 numbers: just above the lower, around the middle, just below
// the upper.
TEST(HalfTest, F16RoundsAsItsNamesSayBetweenAllNeighbours) {
  for (uint32_t bits = 0; bits < 0x7bffu; ++bits) {
    const auto lower = static_cast<uint16_t>(bits);
    const auto upper = static_cast<uint16_t>(bits + 1);
    const auto even = static_cast<uint16_t>(bits + (bits & 1u));
    const float a = F16ToF32(lower);
    const float b = F16ToF32(upper);
    const float middle = 0.5f * (a + b);  // exact in fp32
    const struct {
      float value;
      uint16_t nearest;
    } cases[] = {{std::nextafter(a, b), lower},
                 {std::nextafter(middle, a), lower},
                 {middle, even},
                 {std::nextafter(middle, b), upper},
                 {std::nextafter(b, a), upper}};
    for (const auto& [value, nearest] : cases) {
      ASSERT_EQ(F32ToF16(value), nearest) << bits;
      ASSERT_EQ(F32ToF16Up(value), upper) << bits;
      ASSERT_EQ(F32ToF16Down(value), lower) << bits;
      ASSERT_EQ(F32ToF16(-value), nearest | 0x8000u) << bits;
      ASSERT_EQ(F32ToF16Up(-value), lower | 0x8000u) << bits;
      ASSERT_EQ(F32ToF16Down(-value), upper | 0x8000u) << bits;
    }
  }
}

TEST(HalfTest, F16PastItsLargestNumberFollowsTheRounding) {
  EXPECT_EQ(F32ToF16(65519.0f), 0x7bffu);
  EXPECT_EQ(F32ToF16(65520.0f), 0x7c00u);  // the middle to 65536, which would be even
  EXPECT_EQ(F32ToF16Up(65505.0f), 0x7c00u);
  EXPECT_EQ(F32ToF16Down(65535.0f), 0x7bffu);
  EXPECT_EQ(F32ToF16(1e30f), 0x7c00u);
  EXPECT_EQ(F32ToF16Down(1e30f), 0x7bffu);
  EXPECT_EQ(F32ToF16Down(-1e30f), 0xfc00u);
  EXPECT_EQ(F32ToF16Up(-1e30f), 0xfbffu);
  EXPECT_EQ(F32ToF16(INFINITY), 0x7c00u);
  EXPECT_EQ(F32ToF16Down(INFINITY), 0x7c00u);
  EXPECT_EQ(F32ToF16(1e-30f), 0u);
  EXPECT_EQ(F32ToF16Up(1e-30f), 1u);
  EXPECT_EQ(F32ToF16Down(-1e-30f), 0x8001u);
}

TEST(DTypeTest, SizesAndNamesBelongTogether) {
  EXPECT_EQ(DTypeBytes(DType::kF32), 4u);
  EXPECT_EQ(DTypeBytes(DType::kBF16), 2u);
  EXPECT_EQ(DTypeBytes(DType::kF16), 2u);
  EXPECT_EQ(DTypeBytes(DType::kI32), 4u);
  EXPECT_EQ(DTypeBytes(DType::kI64), 8u);
  EXPECT_EQ(DTypeBytes(DType::kU8), 1u);
  EXPECT_EQ(DTypeName(DType::kBF16), "bf16");
  EXPECT_EQ(DTypeName(DType::kF32), "f32");
}

}  // namespace
}  // namespace baton::kernels
