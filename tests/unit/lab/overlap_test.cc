// The basis of keys, keys before RoPE, and the table of their overlap.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "common/kv/codec/encoded_kv.h"
#include "services/lab/baselines/symmetric_eigen.h"
#include "services/lab/baselines/token_store.h"
#include "services/lab/overlap/key_basis.h"
#include "services/lab/overlap/overlap_table.h"
#include "services/lab/overlap/plain_keys.h"
#include "tests/kernels/support/backends.h"
#include "tests/unit/lab/sequence_bench.h"

namespace baton::lab {
namespace {

using testing::DoubleEq;
using testing::ElementsAre;

TEST(SymmetricEigenTest, TheLargestEigenvalueComesFirst) {
  // 2 and 8 along the diagonals of the first two axes, 5 along the third.
  const std::vector<double> vectors = SymmetricEigenvectors({5, 3, 0, 3, 5, 0, 0, 0, 5}, 3);
  EXPECT_NEAR(std::abs(vectors[0] + vectors[1]), std::sqrt(2.0), 1e-12);
  EXPECT_NEAR(std::abs(vectors[5]), 1.0, 1e-12);
  EXPECT_NEAR(std::abs(vectors[6] - vectors[7]), std::sqrt(2.0), 1e-12);
}

TEST(KeyBasisTest, AGramMatrixIsTheSumOfOuterProducts) {
  EXPECT_THAT(GramMatrix(std::vector<float>{1, 2, 3, -1}, 2), ElementsAre(10, -1, -1, 5));
  EXPECT_THAT(GramMatrix({}, 2), ElementsAre(0, 0, 0, 0));
}

// Bases of the axes 0, 1, 2, 3 and 3, 1, 0, 2, in this order.
TEST(KeyBasisTest, OverlapIsTheShareOfDirectionsInCommon) {
  const KeyBasis a({4, 0, 0, 0, 0, 3, 0, 0, 0, 0, 2, 0, 0, 0, 0, 1}, 4);
  const KeyBasis b({2, 0, 0, 0, 0, 3, 0, 0, 0, 0, 1, 0, 0, 0, 0, 4}, 4);
  EXPECT_THAT(a.Overlap(a, 2), DoubleEq(1.0));
  EXPECT_THAT(a.Overlap(b, 1), DoubleEq(0.0));
  EXPECT_THAT(a.Overlap(b, 2), DoubleEq(0.5));
  EXPECT_THAT(a.Overlap(b, 3), DoubleEq(2.0 / 3));
  EXPECT_THAT(a.Overlap(b, 4), DoubleEq(1.0));
}

TEST(KeyBasisTest, KeptEnergyIsThatAlongTheFirstVectors) {
  const KeyBasis basis({4, 0, 0, 0, 3, 0, 0, 0, 2}, 3);
  const std::vector<double> gram = GramMatrix(std::vector<float>{1, 2, 0, 0, 1, 2}, 3);
  EXPECT_THAT(basis.KeptEnergy(gram, 1), DoubleEq(0.1));
  EXPECT_THAT(basis.KeptEnergy(gram, 2), DoubleEq(0.6));
  EXPECT_THAT(basis.KeptEnergy(gram, 3), DoubleEq(1.0));
  EXPECT_EQ(basis.KeptEnergy(GramMatrix({}, 3), 1), 1.0) << "there is nothing to lose";
}

TEST(KeyBasisTest, NoOtherBasisKeepsMoreOfItsOwnVectors) {
  SCOPED_TRACE(kernels::SeedMessage());
  constexpr int64_t kDim = 24;
  const std::vector<double> gram = GramMatrix(kernels::RandomFloats(100 * kDim), kDim);
  const KeyBasis own(gram, kDim);
  const KeyBasis other(GramMatrix(kernels::RandomFloats(100 * kDim), kDim), kDim);
  for (const int64_t rank : {1, 7, 23}) {
    EXPECT_GT(own.KeptEnergy(gram, rank), other.KeptEnergy(gram, rank)) << rank;
    EXPECT_LT(own.Overlap(other, rank), 1.0) << rank;
  }
  EXPECT_NEAR(own.KeptEnergy(gram, kDim), 1.0, 1e-12);
  EXPECT_NEAR(own.Overlap(other, kDim), 1.0, 1e-12);
}

// Rotated by the definition and with the bias back, they are the keys as stored.
TEST(PlainKeysTest, AreTheKeysBeforeRotationLessTheBias) {
  SCOPED_TRACE(kernels::SeedMessage());
  constexpr int64_t kTokens = 70;
  constexpr int64_t kDim = 16;
  constexpr int64_t kHalf = kDim / 2;
  SequenceBench bench(kTokens, kTokens + 1, kDim);
  bench.Prefill({}, kTokens);
  const kv::WorkingKv working = {.pages = bench.pages().pages(),
                                 .table = bench.pages().prompt_table()};
  std::vector<float> frequencies(kHalf);
  for (size_t i = 0; i < frequencies.size(); ++i) {
    frequencies[i] = std::pow(10.0f, -0.25f * static_cast<float>(i));
  }
  const std::vector<float> bias = kernels::RandomFloats(SequenceBench::kKvHeads * kDim);
  const auto plain = ReadPlainKeys({.ops = bench.setup().ops,
                                    .exec = bench.setup().exec,
                                    .inverse_frequencies = frequencies.data()},
                                   working,
                                   1,
                                   bias.data(),
                                   kTokens);
  ASSERT_TRUE(plain.ok()) << plain.status();
  for (int32_t head = 0; head < SequenceBench::kKvHeads; ++head) {
    std::vector<float> stored(kTokens * kDim);
    ReadTokens(working, 1, head, kTokens, stored, {});
    for (int64_t token = 0; token < kTokens; ++token) {
      const auto at = static_cast<size_t>((token * SequenceBench::kKvHeads + head) * kDim);
      const auto stored_at = static_cast<size_t>(token * kDim);
      for (size_t i = 0; i < kHalf; ++i) {
        const size_t channel = static_cast<size_t>(head * kDim) + i;
        const float low = (*plain)[at + i] + bias[channel];
        const float high = (*plain)[at + i + kHalf] + bias[channel + kHalf];
        const float angle = static_cast<float>(token) * frequencies[i];
        EXPECT_NEAR(low * std::cos(angle) - high * std::sin(angle), stored[stored_at + i], 1e-4f);
        EXPECT_NEAR(
            high * std::cos(angle) + low * std::sin(angle), stored[stored_at + i + kHalf], 1e-4f);
      }
    }
  }
}

TEST(OverlapTableTest, HasALineForEachTurnWithMeansByRank) {
  OverlapTable table({2, 4});
  for (const int64_t tokens : {100, 103}) {
    table.AddTurn(0, tokens, tokens);
  }
  table.AddTurn(1, 120, 20);
  for (size_t turn = 0; turn < 2; ++turn) {
    table.AddLayer(turn, 0, {.overlap = 0.5, .first_keeps = 0.75, .best_keeps = 0.875});
    table.AddLayer(turn, 0, {.overlap = 1.0, .first_keeps = 0.25, .best_keeps = 0.375});
    table.AddLayer(turn, 1, {.overlap = 1.0, .first_keeps = 1.0, .best_keeps = 1.0});
  }
  EXPECT_EQ(table.Format(),
            "| turn | conversations | tokens | new | overlap at 2 | first keeps % | best keeps % | "
            "overlap at 4 | first keeps % | best keeps % |\n"
            "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n"
            "| 1 | 2 | 102 | 102 | 0.750 | 50.00 | 62.50 | 1.000 | 100.00 | 100.00 |\n"
            "| 2 | 1 | 120 | 20 | 0.750 | 50.00 | 62.50 | 1.000 | 100.00 | 100.00 |\n");
}

}  // namespace
}  // namespace baton::lab
