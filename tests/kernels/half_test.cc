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
