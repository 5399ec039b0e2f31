// What baselines are made of: choosing, quantizing, principal axes, attention sums; and the pages
// that a table decodes from.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "common/kv/codec/encoded_kv.h"
#include "services/lab/baselines/h2o.h"
#include "services/lab/baselines/principal_axes.h"
#include "services/lab/baselines/prompt_attention.h"
#include "services/lab/baselines/round_to_codes.h"
#include "services/lab/baselines/token_store.h"
#include "services/lab/baselines/vector_math.h"
#include "tests/kernels/support/backends.h"
#include "tests/unit/lab/sequence_bench.h"

namespace baton::lab {
namespace {

using testing::ElementsAre;

TEST(VectorMathTest, DotAddsEveryProduct) {
  const std::vector<float> ones(19, 1.0f);
  std::vector<float> numbers(19);
  for (size_t i = 0; i < numbers.size(); ++i) {
    numbers[i] = static_cast<float>(i);
  }
  EXPECT_EQ(Dot(ones.data(), numbers.data(), 19), 171.0f);
  EXPECT_EQ(Dot(ones.data(), numbers.data(), 3), 3.0f);
}

TEST(VectorMathTest, Exp2FromMaxIsThePowerOfTwo) {
  SCOPED_TRACE(kernels::SeedMessage());
  std::vector<float> x = kernels::RandomFloats(1001, 10.0f);
  const std::vector<float> before = x;
  const float largest = *std::max_element(x.begin(), x.end());
  const float sum = Exp2FromMax(x);
  double expected_sum = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double expected = std::exp2(static_cast<double>(before[i] - largest));
    EXPECT_NEAR(static_cast<double>(x[i]) / expected, 1.0, 1e-6) << i;
    expected_sum += expected;
  }
  EXPECT_NEAR(static_cast<double>(sum) / expected_sum, 1.0, 1e-6);
}

TEST(VectorMathTest, TopIndicesAscendAndTiesGoToTheLower) {
  const std::vector<float> scores = {1, 5, 3, 5, 3, 3};
  EXPECT_THAT(TopIndices(scores, 3), ElementsAre(1, 2, 3));
  EXPECT_THAT(TopIndices(scores, 4), ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(TopIndices(scores, 0), ElementsAre());
  EXPECT_THAT(TopIndices(scores, 9), ElementsAre(0, 1, 2, 3, 4, 5));
}

TEST(RoundToCodesTest, ValuesOnTheGridStay) {
  std::vector<float> x = {-3, 99, 0, 99, 12, 99, 1, 99};
  RoundToCodes(x.data(), 4, 2, 4);
  EXPECT_THAT(x, ElementsAre(-3, 99, 0, 99, 12, 99, 1, 99));
}

TEST(RoundToCodesTest, OthersGoToTheNearestCode) {
  std::vector<float> x = {0, 0.4f, 0.6f, 2.2f, 3};
  RoundToCodes(x.data(), 5, 1, 2);
  EXPECT_THAT(x, ElementsAre(0, 0, 1, 2, 3));
}

TEST(RoundToCodesTest, EqualValuesBecomeTheirZero) {
  std::vector<float> x = {0.5f, 0.5f, 0.5f};
  RoundToCodes(x.data(), 3, 1, 2);
  EXPECT_THAT(x, ElementsAre(0.5f, 0.5f, 0.5f));
}

TEST(RoundToCodesTest, ErrorsAreHalfAStepAndWhatFp16Loses) {
  SCOPED_TRACE(kernels::SeedMessage());
  const std::vector<float> before = kernels::RandomFloats(64, 2.0f);
  const auto [low, high] = std::minmax_element(before.begin(), before.end());
  for (const int bits : {2, 4, 8}) {
    std::vector<float> x = before;
    RoundToCodes(x.data(), 64, 1, bits);
    const float step = (*high - *low) / static_cast<float>((1 << bits) - 1);
    const float metadata = (std::abs(*low) + (*high - *low)) * 0x1p-11f;
    for (size_t i = 0; i < x.size(); ++i) {
      EXPECT_LE(std::abs(x[i] - before[i]), 0.5f * step + metadata) << bits << " bits, " << i;
    }
  }
}

TEST(PrincipalAxesTest, FindsTheDirectionsOfVarianceWhateverTheMean) {
  // Variance 9 along (3, 4) / 5, 1 along (-4, 3) / 5, none along the third axis.
  std::vector<float> vectors;
  for (const auto& [a, b] :
       std::vector<std::pair<float, float>>{{3, 1}, {3, -1}, {-3, 1}, {-3, -1}}) {
    vectors.insert(vectors.end(), {0.6f * a - 0.8f * b + 100, 0.8f * a + 0.6f * b - 50, 7});
  }
  const std::vector<float> axes = PrincipalAxes(vectors, 3, 2);
  ASSERT_EQ(axes.size(), 6u);
  EXPECT_NEAR(std::abs(axes[0] * 0.6f + axes[1] * 0.8f), 1.0f, 1e-5f);
  EXPECT_NEAR(std::abs(axes[3] * -0.8f + axes[4] * 0.6f), 1.0f, 1e-5f);
}

TEST(PrincipalAxesTest, AllAxesAreOrthonormal) {
  SCOPED_TRACE(kernels::SeedMessage());
  constexpr size_t kDim = 24;
  const std::vector<float> vectors = kernels::RandomFloats(200 * kDim);
  const std::vector<float> axes = PrincipalAxes(vectors, kDim, kDim);
  for (size_t i = 0; i < kDim; ++i) {
    for (size_t j = 0; j < kDim; ++j) {
      EXPECT_NEAR(Dot(&axes[i * kDim], &axes[j * kDim], kDim), i == j ? 1.0f : 0.0f, 1e-5f);
    }
  }
}

// Keys are 0 but for token 1, whose key is log(3) along channel 0; queries are 1 there. Query p
// gives token 1 three times what it gives another: 3 / (p + 3) from p = 1 on.
TEST(PromptAttentionTest, SumsTheProbabilitiesOfObservedQueries) {
  SequenceBench bench(5, 6, 8);
  bench.SetAllKeys(0.0f);
  bench.SetAllQueries(0.0f);
  bench.SetKey(1, {std::log(3.0f)});
  for (int64_t token = 0; token < 5; ++token) {
    bench.SetQuery(token, {1.0f});
  }
  const auto attention = std::make_shared<PromptAttention>(bench.setup(), 2);
  H2oBaseline baseline(bench.setup(), 6, attention);
  EXPECT_EQ(baseline.first_observed(), 2);
  bench.Prefill(baseline, 1.0f);
  for (int32_t layer = 0; layer < SequenceBench::kLayers; ++layer) {
    for (int32_t head = 0; head < SequenceBench::kKvHeads; ++head) {
      const auto sums = attention->Sums({.kv_layer = layer, .kv_head = head});
      const float others[] = {1.0f / 5, 1.0f / 6, 1.0f / 7};  // of queries 2, 3 and 4
      EXPECT_NEAR(sums[0], others[0] + others[1] + others[2], 1e-6f);
      EXPECT_NEAR(sums[1], 3 * sums[0], 1e-6f);
      EXPECT_NEAR(sums[2], sums[0], 1e-6f);
      EXPECT_NEAR(sums[3], others[1] + others[2], 1e-6f);
      EXPECT_NEAR(sums[4], others[2], 1e-6f);
    }
  }
}

TEST(PromptAttentionTest, AQueryCountsWithTheLargestOfItsHeads) {
  SequenceBench bench(2, 3, 8);
  bench.SetAllKeys(0.0f);
  bench.SetKey(0, {1.0f});
  // Heads 0 and 2 look at token 0 and heads 1 and 3 away from it: 3/4 and 1/4, 1/4 and 3/4.
  const float log3 = std::log(3.0f);
  std::vector<float> heads(SequenceBench::kHeads * 8, 0.0f);
  heads[0] = heads[16] = log3;
  heads[8] = heads[24] = -log3;
  bench.SetQueryHeads(1, heads);
  const auto attention = std::make_shared<PromptAttention>(bench.setup(), 1);
  H2oBaseline baseline(bench.setup(), 3, attention);
  bench.Prefill(baseline, 1.0f);
  for (int32_t head = 0; head < SequenceBench::kKvHeads; ++head) {
    const auto sums = attention->Sums({.kv_layer = 1, .kv_head = head});
    EXPECT_NEAR(sums[0], 0.75f, 1e-6f);
    EXPECT_NEAR(sums[1], 0.75f, 1e-6f);
  }
}

TEST(PromptAttentionTest, ChunksAndFurtherObserversChangeNothing) {
  SCOPED_TRACE(kernels::SeedMessage());
  SequenceBench bench(150, 151, 16);
  const auto whole = std::make_shared<PromptAttention>(bench.setup(), 0);
  H2oBaseline one(bench.setup(), 20, whole);
  bench.Prefill(one);
  const auto chunked = std::make_shared<PromptAttention>(bench.setup(), 0);
  H2oBaseline first(bench.setup(), 20, chunked);
  H2oBaseline second(bench.setup(), 40, chunked);
  const std::vector<kv::EncodedKv*> both = {&first, &second};
  bench.Prefill(both, 37);
  const auto a = whole->Sums({.kv_layer = 1, .kv_head = 1});
  const auto b = chunked->Sums({.kv_layer = 1, .kv_head = 1});
  float total = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_NEAR(a[i], b[i], 1e-5f) << i;
    total += a[i];
  }
  // Every query hands out at least 1 and, with two heads, less than 2.
  EXPECT_GE(total, 150.0f);
  EXPECT_LT(total, 300.0f);
}

TEST(WorkingPagesTest, ARunLeavesThePromptAsItWas) {
  SCOPED_TRACE(kernels::SeedMessage());
  SequenceBench bench(70, 110, 8);
  bench.Prefill({}, 70);
  const kv::WorkingKv working = {.pages = bench.pages().pages(),
                                 .table = bench.pages().prompt_table()};
  std::vector<float> before(70 * 8);
  std::vector<float> after(70 * 8);
  ReadTokens(working, 1, 1, 70, before, {});
  std::vector<std::vector<float>> outputs;
  for (int run = 0; run < 2; ++run) {
    for (int64_t token = 70; token < 110; ++token) {
      outputs.push_back(bench.DecodeDense(token));
    }
  }
  ReadTokens(working, 1, 1, 70, after, {});
  kernels::ExpectSameBits(after, before);
  for (size_t step = 0; step < 40; ++step) {
    kernels::ExpectSameBits(outputs[step + 40], outputs[step]);
  }
  // Per layer 3 pages of 32 tokens: keys and values of 2 heads, fp32.
  EXPECT_EQ(bench.pages().PromptBytes(), 2 * 3 * 32 * 2 * 2 * 8 * 4);
}

}  // namespace
}  // namespace baton::lab
