#include "kernels/core/float8.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <random>

#include "kernels/core/dtype.h"
#include "tests/kernels/support/backends.h"

namespace baton::kernels {
namespace {

// Value of a finite float8_e4m3fn by its definition.
double ByDefinition(uint8_t code) {
  const int exponent = (code >> 3) & 0xf;
  const int mantissa = code & 7;
  const double magnitude =
      exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
  return (code & 0x80) != 0 ? -magnitude : magnitude;
}

// The nearest code to a finite value, of two equally near ones the even, found by trying all.
uint8_t NearestCode(float value) {
  const int sign = std::signbit(value) ? 0x80 : 0;
  int best = 0;
  for (int code = 1; code <= 0x7e; ++code) {
    const double distance = std::fabs(ByDefinition(static_cast<uint8_t>(code)) - std::fabs(value));
    const double least = std::fabs(ByDefinition(static_cast<uint8_t>(best)) - std::fabs(value));
    if (distance < least || (distance == least && code % 2 == 0)) {
      best = code;
    }
  }
  return static_cast<uint8_t>(sign | best);
}

TEST(Float8Test, EveryCodeHasItsDefinedValue) {
  for (int i = 0; i < 256; ++i) {
    const auto code = static_cast<uint8_t>(i);
    const float value = F8E4M3ToF32(code);
    EXPECT_EQ(std::signbit(value), i >= 128) << i;
    if ((i & 0x7f) == 0x7f) {
      EXPECT_TRUE(std::isnan(value)) << i;
    } else {
      EXPECT_EQ(double{value}, ByDefinition(code)) << i;
    }
  }
  EXPECT_EQ(F8E4M3ToF32(0x7e), kF8E4M3Max);
}

TEST(Float8Test, EveryCodeSurvivesTheRoundTrip) {
  for (int i = 0; i < 256; ++i) {
    const auto code = static_cast<uint8_t>(i);
    EXPECT_EQ(F32ToF8E4M3(F8E4M3ToF32(code)), code);
  }
}

TEST(Float8Test, MidpointsGoToTheEvenCodeAndTheirNeighboursToTheNearer) {
  for (int code = 0; code < 0x7e; ++code) {
    const double low = ByDefinition(static_cast<uint8_t>(code));
    const double high = ByDefinition(static_cast<uint8_t>(code + 1));
    const auto middle = static_cast<float>((low + high) / 2);
    EXPECT_EQ(F32ToF8E4M3(middle), code + code % 2) << code;
    EXPECT_EQ(F32ToF8E4M3(std::nextafterf(middle, 0.0f)), code);
    EXPECT_EQ(F32ToF8E4M3(std::nextafterf(middle, 1e9f)), code + 1);
    EXPECT_EQ(F32ToF8E4M3(-middle), 0x80 + code + code % 2);
  }
}

TEST(Float8Test, LargeValuesSaturateAndNaNsStay) {
  for (const float value : {448.0f, 463.9f, 464.0f, 1e30f, INFINITY}) {
    EXPECT_EQ(F32ToF8E4M3(value), 0x7e) << value;
    EXPECT_EQ(F32ToF8E4M3(-value), 0xfe) << value;
  }
  EXPECT_EQ(F32ToF8E4M3(NAN), 0x7f);
  EXPECT_EQ(F32ToF8E4M3(-NAN), 0xff);
}

TEST(Float8Test, RandomFloatsRoundAsTheOracleDoes) {
  SCOPED_TRACE(SeedMessage());
  std::mt19937 random(TestSeed());
  for (int i = 0; i < 200000; ++i) {
    // Every exponent from well below the subnormals to above the maximum.
    const auto exponent = std::uniform_int_distribution<uint32_t>(127 - 14, 127 + 10)(random);
    const uint32_t bits = (random() & 0x807fffffu) | exponent << 23;
    const auto value = std::bit_cast<float>(bits);
    ASSERT_EQ(F32ToF8E4M3(value), NearestCode(value)) << value;
  }
}

TEST(Float8Test, ItsDTypeHasASizeAndAName) {
  EXPECT_EQ(DTypeBytes(DType::kF8E4M3), 1u);
  EXPECT_EQ(DTypeName(DType::kF8E4M3), "f8e4m3");
}

}  // namespace
}  // namespace baton::kernels
