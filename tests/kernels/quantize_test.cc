#include "kernels/kv_format/quantize.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "kernels/core/half.h"
#include "tests/kernels/support/backends.h"

namespace baton::kernels {
namespace {

constexpr int32_t kWidths[] = {8, 4, 2};

// Largest |x - x'| in units of the scale.
double WorstError(const std::vector<float>& x,
                  const std::vector<uint8_t>& codes,
                  QuantRange range) {
  const double scale = F16ToF32(range.scale);
  double worst = 0.0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double value = scale * codes[i] + double{F16ToF32(range.zero)};
    worst = std::max(worst, std::fabs(double{x[i]} - value) / scale);
  }
  return worst;
}

TEST(QuantizeTest, KnownCodes) {
  const std::vector<float> x = {-1.0f, 0.0f, 0.5f, 2.0f};
  std::vector<uint8_t> codes(4);
  // Zero -1, scale 3 / 3 = 1: 0.5 lies between codes 1 and 2, and 1.5 rounds to the even one.
  const QuantRange range = QuantizeVector(x.data(), 4, 2, codes.data());
  EXPECT_EQ(range, (QuantRange{.scale = F32ToF16(1.0f), .zero = F32ToF16(-1.0f)}));
  EXPECT_EQ(codes, (std::vector<uint8_t>{0, 1, 2, 3}));
  EXPECT_EQ(DequantCode(3, range), 2.0f);
}

TEST(QuantizeTest, ErrorIsAtMostHalfAScaleAtEveryOffset) {
  for (const int32_t bits : kWidths) {
    for (const float offset : {0.0f, -1.0f, 10.0f, -10.0f, 100.0f, -100.0f}) {
      for (int round = 0; round < 200; ++round) {
        std::vector<float> x = RandomFloats(128);
        for (float& value : x) {
          value += offset;
        }
        std::vector<uint8_t> codes(x.size());
        const QuantRange range = QuantizeVector(x.data(), 128, bits, codes.data());
        ASSERT_LE(WorstError(x, codes, range), 0.51)
            << bits << " bits, offset " << offset << "; " << SeedMessage();
      }
    }
  }
}

TEST(QuantizeTest, DemotedErrorIsAtMostHalfAScaleAtEveryOffset) {
  for (const auto& [from, to] : {std::pair{8, 4}, {4, 2}, {8, 2}}) {
    for (const float offset : {0.0f, 10.0f, -100.0f}) {
      for (int round = 0; round < 200; ++round) {
        std::vector<float> x = RandomFloats(128);
        for (float& value : x) {
          value += offset;
        }
        std::vector<uint8_t> codes(x.size());
        const QuantRange range =
            DemoteRange(QuantizeVector(x.data(), 128, from, codes.data()), from, to);
        for (uint8_t& code : codes) {
          code = DemoteCode(code, from, to);
        }
        ASSERT_LE(WorstError(x, codes, range), 0.51)
            << from << " to " << to << " bits, offset " << offset << "; " << SeedMessage();
      }
    }
  }
}

TEST(QuantizeTest, AVectorOfOneValueGetsScaleZeroAndCodeZero) {
  for (const int32_t bits : kWidths) {
    for (const float value : {0.0f, -0.0f, 1.5f, -3.0f}) {
      const std::vector<float> x(16, value);
      std::vector<uint8_t> codes(16, 0xff);
      const QuantRange range = QuantizeVector(x.data(), 16, bits, codes.data());
      EXPECT_EQ(range.scale, 0u);
      EXPECT_EQ(range.zero, F32ToF16(value + 0.0f));
      EXPECT_EQ(codes, std::vector<uint8_t>(16, 0));
      EXPECT_EQ(DequantCode(0, range), value);
    }
  }
}

TEST(QuantizeTest, ValuesPastFp16Saturate) {
  const std::vector<float> x = {-1e6f, 0.0f, 1e6f, 3e38f};
  std::vector<uint8_t> codes(4);
  const QuantRange range = QuantizeVector(x.data(), 4, 8, codes.data());
  EXPECT_EQ(F16ToF32(range.zero), -65504.0f);
  EXPECT_EQ(codes[0], 0);
  EXPECT_EQ(codes[3], 255);
  EXPECT_TRUE(std::isfinite(DequantCode(255, range)));
  EXPECT_LE(std::fabs(DequantCode(codes[1], range)), F16ToF32(range.scale));
}

TEST(QuantizeTest, DemotionGivesTheCodeOfADirectQuantizationOnADenseGrid) {
  // x / scale in steps of 1/64 over the whole range; zero 0 and scale 1 are exact in every width.
  for (int32_t step = 0; step <= 255 * 64; ++step) {
    const float x = static_cast<float>(step) / 64.0f;
    const uint8_t eight = QuantCode(x, 0.0f, 1.0f, 8);
    ASSERT_EQ(DemoteCode(eight, 8, 4), QuantCode(x, 0.0f, 17.0f, 4)) << x;
    if (step <= 15 * 64) {
      const uint8_t four = QuantCode(x, 0.0f, 1.0f, 4);
      ASSERT_EQ(DemoteCode(four, 4, 2), QuantCode(x, 0.0f, 5.0f, 2)) << x;
    }
  }
}

TEST(QuantizeTest, DemotionIsTheStatedIntegerMap) {
  for (int32_t code = 0; code < 256; ++code) {
    const auto u = static_cast<uint8_t>(code);
    EXPECT_EQ(DemoteCode(u, 8, 4), (code + 8) / 17);
    EXPECT_EQ(DemoteCode(u, 8, 8), code);
    EXPECT_EQ(DemoteCode(DemoteCode(u, 8, 4), 4, 2), DemoteCode(u, 8, 2));
  }
  for (int32_t code = 0; code < 16; ++code) {
    EXPECT_EQ(DemoteCode(static_cast<uint8_t>(code), 4, 2), (code + 2) / 5);
  }
  const QuantRange range = {.scale = F32ToF16(0.25f), .zero = F32ToF16(-3.0f)};
  EXPECT_EQ(DemoteRange(range, 8, 4),
            (QuantRange{.scale = F32ToF16(4.25f), .zero = F32ToF16(-3.0f)}));
  EXPECT_EQ(DemoteRange(range, 4, 4), range);
}

}  // namespace
}  // namespace baton::kernels
