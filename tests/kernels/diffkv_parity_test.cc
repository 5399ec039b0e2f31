// Ops of format `diffkv` of every CPU back end against the reference: pages, counts, classes and
// ids bit by bit, attention within a tolerance.
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"

#include "kernels/core/dtype.h"
#include "kernels/kv_format/diffkv.h"
#include "kernels/ops/diffkv_params.h"
#include "kernels/ops/op_table.h"
#include "kernels/reference/reference_ops.h"
#include "tests/kernels/support/backends.h"
#include "tests/kernels/support/diffkv_problem.h"

namespace baton::kernels {
namespace {

class DiffKvParityTest : public BackendTest {
 protected:
  void CheckAttention(const DiffKvShape& shape, int32_t tokens) {
    SCOPED_TRACE(absl::StrCat(Describe(shape), " tokens ", tokens));
    const TestContext context(ops(), 2);
    const DiffKvPrompt prompt(shape.geometry, tokens);
    DiffKvCache want(shape, tokens);
    want.Load(ReferenceOps(), *context, prompt, MixedPolicy(tokens));
    DiffKvCache got = want;
    ExpectNear(got.Attend(ops(), *context, tokens - 1, 3),
               want.Attend(ReferenceOps(), *context, tokens - 1, 3),
               2e-6);
    for (int32_t head = 0; head < shape.geometry.kv_heads; ++head) {
      const int64_t begin = int64_t{head} * tokens;
      const int32_t stored = got.Count(head, kDiffKvHigh) + got.Count(head, kDiffKvLow);
      ExpectNear({got.probabilities.data() + begin, static_cast<size_t>(stored)},
                 {want.probabilities.data() + begin, static_cast<size_t>(stored)},
                 2e-6);
    }
  }
};

TEST_P(DiffKvParityTest, AttentionOverEveryTier) {
  for (const DiffKvGeometry& geometry : DiffKvGeometries()) {
    CheckAttention({.geometry = geometry}, 300);
  }
}

TEST_P(DiffKvParityTest, AttentionOfEveryGroupSize) {
  for (const int64_t group : {1, 2, 3, 4, 5, 7, 8, 9, 16}) {
    CheckAttention({.geometry = {.kv_heads = 2, .head_dim = 128}, .group = group}, 200);
  }
}

TEST_P(DiffKvParityTest, AttentionAroundPageBorders) {
  for (const int32_t tokens : {1, 2, 23, 24, 25, 31, 32, 33, 47, 48, 49, 63, 64, 65, 127, 129}) {
    for (const DiffKvGeometry& geometry : DiffKvGeometries()) {
      CheckAttention({.geometry = geometry}, tokens);
    }
  }
}

TEST_P(DiffKvParityTest, AttentionOverManySplits) {
  CheckAttention({.geometry = {.kv_heads = 2, .head_dim = 128}, .group = 4}, 3000);
}

TEST_P(DiffKvParityTest, AttentionUnderASlidingWindow) {
  for (const int32_t window : {1, 2, 15, 16, 17, 100, 10000}) {
    CheckAttention({.sliding_window = window}, 300);
  }
}

TEST_P(DiffKvParityTest, LaterLayersOfAGroupTakeTheMaximumAndTheLastAddsIt) {
  const TestContext context(ops(), 2);
  const DiffKvShape shape = {.geometry = {.kv_heads = 2, .head_dim = 64}, .group = 3};
  constexpr int32_t kTokens = 150;
  const DiffKvPrompt prompt(shape.geometry, kTokens);
  DiffKvCache want(shape, kTokens);
  want.Load(ReferenceOps(), *context, prompt, MixedPolicy(kTokens));
  const std::vector<std::byte> before = want.pool;
  DiffKvCache got = want;
  for (const auto& [seed, first, last] :
       {std::tuple{1u, true, false}, {2u, false, false}, {3u, false, true}}) {
    if (!last) {
      EXPECT_EQ(got.pool, before) << "scores are added by the last layer only";
    }
    ExpectNear(got.Attend(ops(), *context, kTokens - 1, seed, first, last),
               want.Attend(ReferenceOps(), *context, kTokens - 1, seed, first, last),
               2e-6);
  }
  const DiffKvPageLayout high = shape.geometry.layout(kDiffKvHigh);
  const auto score = [&](DiffKvCache& cache) {
    return reinterpret_cast<float*>(cache.PageData(1, kDiffKvHigh, 0) + high.scores())[0];
  };
  EXPECT_NEAR(score(got), score(want), 2e-6);
  const float was = *reinterpret_cast<const float*>(
      before.data() + (got.PageData(1, kDiffKvHigh, 0) - got.pool.data()) + high.scores());
  EXPECT_EQ(score(got), was + got.probabilities[kTokens]);
}

TEST_P(DiffKvParityTest, EncodedPagesHaveTheSameBytes) {
  for (const DType dtype : {DType::kBF16, DType::kF32}) {
    for (const DiffKvGeometry& geometry : DiffKvGeometries()) {
      for (const int32_t tokens : {1, 20, 65, 1000}) {
        SCOPED_TRACE(absl::StrCat(Describe({.geometry = geometry}), " tokens ", tokens));
        const TestContext context(ops(), 2);
        const DiffKvPrompt prompt(geometry, tokens, dtype);
        DiffKvCache want({.geometry = geometry}, tokens);
        DiffKvCache got = want;
        want.Load(ReferenceOps(), *context, prompt, MixedPolicy(tokens));
        got.Load(ops(), *context, prompt, MixedPolicy(tokens));
        EXPECT_EQ(got.classes, want.classes);
        ExpectSameCache(got, want);
      }
    }
  }
}

// Both caches get the same scores after each step, so that both decide on the same bits.
TEST_P(DiffKvParityTest, AppendsLeaveTheSameBytes) {
  for (const DiffKvRule rule : {DiffKvRule::kRelease, DiffKvRule::kPaper}) {
    for (const DiffKvGeometry& geometry : DiffKvGeometries()) {
      const DiffKvShape shape = {.geometry = geometry};
      SCOPED_TRACE(Describe(shape));
      constexpr int32_t kTokens = 100;
      constexpr int32_t kSteps = 150;
      DiffKvPolicy policy = MixedPolicy(kTokens);
      policy.rule = rule;
      policy.sinks = 2;
      const TestContext context(ops(), 2);
      const DiffKvPrompt prompt(geometry, kTokens);
      DiffKvCache want(shape, kTokens + kSteps);
      want.Load(ReferenceOps(), *context, prompt, policy);
      DiffKvCache got = want;
      for (int32_t p = kTokens; p < kTokens + kSteps; ++p) {
        const auto seed = static_cast<uint32_t>(p);
        const bool sweep = p % 5 != 0;
        ASSERT_TRUE(want.Append(ReferenceOps(), *context, policy, p, seed, sweep).ok());
        ASSERT_TRUE(got.Append(ops(), *context, policy, p, seed, sweep).ok());
        ASSERT_NO_FATAL_FAILURE(ExpectSameCache(got, want)) << "position " << p;
        want.Attend(ops(), *context, p, seed);
        got.pool = want.pool;
      }
    }
  }
}

TEST_P(DiffKvParityTest, ClassesUnderEveryScoringAndBase) {
  const TestContext context(ops(), 2);
  for (const DiffKvScoring scoring : {DiffKvScoring::kLastWindow, DiffKvScoring::kAllLater}) {
    for (const DiffKvBase base : {DiffKvBase::kLength, DiffKvBase::kIndex}) {
      for (const int32_t tokens : {1, 5, 63, 64, 65, 500}) {
        const DiffKvGeometry geometry = {.kv_heads = 3, .head_dim = 64};
        const DiffKvPrompt prompt(geometry, tokens);
        DiffKvPolicy policy = MixedPolicy(tokens);
        policy.scoring = scoring;
        policy.base = base;
        std::vector<DiffKvClass> classes[2];
        std::vector<int32_t> counts[2];
        for (int i = 0; i < 2; ++i) {
          classes[i].resize(prompt.scores.size());
          counts[i].resize(6);
          const OpTable& table = i == 0 ? ops() : ReferenceOps();
          ASSERT_TRUE(table
                          .diffkv_classify(*context,
                                           {.scores = prompt.scores.data(),
                                            .score_stride = tokens,
                                            .tokens = tokens,
                                            .kv_heads = 3,
                                            .policy = policy,
                                            .classes = classes[i].data(),
                                            .token_counts = counts[i].data()})
                          .ok());
        }
        EXPECT_EQ(classes[0], classes[1]);
        EXPECT_EQ(counts[0], counts[1]);
      }
    }
  }
}

TEST_P(DiffKvParityTest, PromptProbabilitiesAndTheirSums) {
  for (const int32_t window : {0, 37}) {
    for (const int64_t group : {1, 3, 4}) {
      for (const int32_t head_dim : {24, 64, 128}) {
        SCOPED_TRACE(absl::StrCat("window ", window, " group ", group, " head_dim ", head_dim));
        constexpr int32_t kTokens = 141;
        constexpr int64_t kRows = 70;
        const DiffKvGeometry geometry = {.kv_heads = 2, .head_dim = head_dim};
        const DiffKvPrompt prompt(geometry, kTokens);
        const TestContext context(ops(), 2);
        std::vector<int32_t> positions(kRows);
        std::iota(positions.begin(), positions.end(), kTokens - static_cast<int32_t>(kRows));
        const auto width = static_cast<size_t>(2 * group * head_dim);
        const std::vector<float> q = RandomFloats(kRows * width, 2.0f);
        const std::vector<float> q2 = RandomFloats(kRows * width, 2.0f);
        constexpr size_t kStride = kTokens + 3;
        std::vector<float> probabilities[2];
        std::vector<float> scores[2];
        for (int i = 0; i < 2; ++i) {
          const OpTable& table = i == 0 ? ops() : ReferenceOps();
          probabilities[i].assign(kRows * 2 * kStride, -7.0f);
          scores[i].assign(2 * kStride, 0.5f);
          AttentionProbabilitiesParams params = {
              .q = q.data(),
              .q_stride = static_cast<int64_t>(width),
              .positions = positions.data(),
              .rows = kRows,
              .page_table = prompt.dense_table.data(),
              .pages = {.base = const_cast<std::byte*>(prompt.dense.data()),
                        .layout = prompt.layout},
              .heads = 2 * group,
              .scale = 1.0f / std::sqrt(static_cast<float>(head_dim)),
              .sliding_window = window,
              .probabilities = probabilities[i].data(),
              .probability_stride = kStride};
          ASSERT_TRUE(table.attention_probabilities(*context, params).ok());
          params.q = q2.data();
          params.combine = true;
          ASSERT_TRUE(table.attention_probabilities(*context, params).ok());
          for (const bool own : {true, false}) {
            ASSERT_TRUE(table
                            .accumulate_scores(*context,
                                               {.probabilities = probabilities[0].data(),
                                                .probability_stride = kStride,
                                                .positions = positions.data(),
                                                .rows = kRows,
                                                .kv_heads = 2,
                                                .own = own,
                                                .scores = scores[i].data(),
                                                .score_stride = kStride})
                            .ok());
          }
        }
        ExpectNear(probabilities[0], probabilities[1], 2e-6);
        ExpectSameBits(scores[0], scores[1]);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Backends,
                         DiffKvParityTest,
                         testing::ValuesIn(kCpuBackends),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace baton::kernels
