#include "common/engine/sampling/philox.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <set>

namespace baton::engine {
namespace {

using Block = std::array<uint32_t, 4>;

// Known answers published with the reference implementation (Random123, kat_vectors).
TEST(PhiloxTest, MatchesThePublishedKnownAnswers) {
  EXPECT_EQ(Philox4x32({0, 0, 0, 0}, {0, 0}),
            (Block{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(Philox4x32({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}),
            (Block{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(Philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Block{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(UniformDrawTest, DependsOnSeedIndexAndPosition) {
  std::set<double> draws;
  for (const uint64_t seed : {uint64_t{1}, uint64_t{2}, uint64_t{1} << 32, ~uint64_t{0}}) {
    for (int32_t index = 0; index < 3; ++index) {
      for (const int64_t position : {int64_t{0}, int64_t{1}, int64_t{1} << 32}) {
        const DrawKey key = {.seed = seed, .sequence_index = index, .position = position};
        EXPECT_EQ(UniformDraw(key), UniformDraw(key));
        draws.insert(UniformDraw(key));
      }
    }
  }
  EXPECT_EQ(draws.size(), 4u * 3 * 3);
}

TEST(UniformDrawTest, StaysInTheUnitIntervalWithTheRightMean) {
  double sum = 0.0;
  constexpr int kDraws = 100000;
  for (int i = 0; i < kDraws; ++i) {
    const double draw = UniformDraw({.seed = 5, .sequence_index = 0, .position = i});
    ASSERT_GE(draw, 0.0);
    ASSERT_LT(draw, 1.0);
    sum += draw;
  }
  // Standard deviation of the mean: 0.289 / sqrt(100000) = 0.0009.
  EXPECT_NEAR(sum / kDraws, 0.5, 0.005);
}

}  // namespace
}  // namespace baton::engine
