#include "common/model/rope.h"

#include <cmath>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace baton::model {
namespace {

checkpoint::ModelConfig Config(int32_t head_dim, float factor) {
  checkpoint::ModelConfig config;
  config.head_dim = head_dim;
  config.rope_theta = 500000.0;
  config.rope_scaling.factor = factor;
  return config;
}

// Relative to 1e-6: one rounding to fp32, and the ten digits given.
void ExpectClose(float actual, double expected) { EXPECT_NEAR(actual / expected, 1.0, 1e-6); }

// Index of the first frequency that differs from the unscaled one, and of the first that is divided
// by the whole factor.
std::pair<size_t, size_t> Borders(int32_t head_dim, float factor) {
  const std::vector<float> plain = RopeInverseFrequencies(Config(head_dim, 1.0f));
  const std::vector<float> scaled = RopeInverseFrequencies(Config(head_dim, factor));
  size_t blended = 0;
  while (scaled[blended] == plain[blended]) {
    ++blended;
  }
  size_t divided = blended;
  while (std::abs(scaled[divided] * factor / plain[divided] - 1.0f) > 1e-6f) {
    ++divided;
  }
  return {blended, divided};
}

// Check values of swiftkv.md 3.3.
TEST(RopeTest, Llama31EightBillionValues) {
  const std::vector<float> inverse = RopeInverseFrequencies(Config(128, 8.0f));
  ASSERT_EQ(inverse.size(), 64u);
  ExpectClose(inverse[0], 1.0);
  ExpectClose(inverse[29], 2.166570764e-3);
  ExpectClose(inverse[35], 9.556212354e-5);
  ExpectClose(inverse[63], 3.068925989e-7);
  EXPECT_EQ(Borders(128, 8.0f), std::make_pair(size_t{29}, size_t{35}));
}

TEST(RopeTest, Llama32Values) {
  ExpectClose(RopeInverseFrequencies(Config(64, 32.0f))[16], 4.295567966e-4);
  EXPECT_EQ(Borders(64, 32.0f), std::make_pair(size_t{15}, size_t{18}));
  ExpectClose(RopeInverseFrequencies(Config(128, 32.0f))[29], 2.118406997e-3);
}

TEST(RopeTest, FactorOneIsPlainRope) {
  const std::vector<float> inverse = RopeInverseFrequencies(Config(4, 1.0f));
  ASSERT_EQ(inverse.size(), 2u);
  EXPECT_EQ(inverse[0], 1.0f);
  ExpectClose(inverse[1], 1.0 / std::sqrt(500000.0));
}

}  // namespace
}  // namespace baton::model
