// Ops of format `diffkv` on a sequence that goes on with more prompt tokens: pages that are
// continued, attention merged with that over other keys, scores over a part of the tokens.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "kernels/kv_format/diffkv.h"
#include "kernels/kv_format/unobserved_range.h"
#include "kernels/ops/diffkv_params.h"
#include "kernels/ops/op_table.h"
#include "kernels/ops/params.h"
#include "kernels/reference/reference_ops.h"
#include "tests/kernels/support/backends.h"
#include "tests/kernels/support/diffkv_problem.h"

namespace baton::kernels {
namespace {

constexpr float kNone = -std::numeric_limits<float>::infinity();

class DiffKvExtensionTest : public BackendTest {
 protected:
  static DiffKvPolicy Policy(int32_t tokens) {
    return AfterPrompt({.alpha_high = 1.0f, .alpha_low = 0.2f, .window = 16}, tokens);
  }
  // Classes in any order, [kv_heads][tokens].
  static std::vector<DiffKvClass> RandomClasses(const DiffKvPrompt& prompt, int32_t kv_heads) {
    std::mt19937 random(TestSeed());
    std::vector<DiffKvClass> classes(static_cast<size_t>(kv_heads) *
                                     static_cast<size_t>(prompt.tokens));
    std::generate(classes.begin(), classes.end(), [&] {
      return static_cast<DiffKvClass>(std::min<uint64_t>(random() % 5, 2));
    });
    return classes;
  }
  // Takes the tokens [first, end) of the prompt in.
  void Take(DiffKvCache& cache,
            const DiffKvPrompt& prompt,
            const std::vector<DiffKvClass>& classes,
            int32_t first,
            int32_t end) const {
    const TestContext context(ops(), 2);
    const DiffKvGeometry& geometry = cache.shape.geometry;
    const std::vector<int32_t> held = cache.counts;
    std::vector<DiffKvClass> part;
    std::vector<float> scores;
    for (int32_t head = 0; head < geometry.kv_heads; ++head) {
      for (int32_t token = first; token < end; ++token) {
        const auto at = static_cast<size_t>(int64_t{head} * prompt.tokens + token);
        part.push_back(classes[at]);
        scores.push_back(prompt.scores[at]);
        if (classes[at] != DiffKvClass::kPruned) {
          const int32_t tier = classes[at] == DiffKvClass::kHigh ? kDiffKvHigh : kDiffKvLow;
          ++cache.counts[static_cast<size_t>(int64_t{head} * kDiffKvTiers + tier)];
        }
      }
    }
    const DiffKvLayer layer = cache.layer();
    absl::Status status = ops().diffkv_assign_pages(
        *context,
        {.geometry = geometry, .layer = layer, .held = held.data(), .lease = &cache.lease});
    ASSERT_TRUE(status.ok()) << status;
    status = ops().diffkv_encode(
        *context,
        {.source = {.base = const_cast<std::byte*>(prompt.dense.data()), .layout = prompt.layout},
         .source_table = prompt.dense_table.data(),
         .first_token = first,
         .tokens = end,
         .classes = part.data(),
         .scores = scores.data(),
         .score_stride = end - first,
         .held = held.data(),
         .layer = layer,
         .pages = cache.pages()});
    ASSERT_TRUE(status.ok()) << status;
  }

  // One query over the cache; `out` and `lse` (if not empty) are merged into.
  void Attend(DiffKvCache& cache,
              int32_t position,
              const std::vector<float>& q,
              bool observed,
              std::vector<float>& out,
              std::vector<float>& lse) const {
    const TestContext context(ops(), 2);
    const DiffKvGeometry& geometry = cache.shape.geometry;
    const int64_t heads = cache.shape.group * geometry.kv_heads;
    std::vector<float> scratch(
        static_cast<size_t>(DiffKvScratchFloats(geometry, heads, cache.max_tokens)), NAN);
    DiffKvAttentionRow row = {.layer = cache.layer(),
                              .position = position,
                              .lse = lse.empty() ? nullptr : lse.data(),
                              .probabilities = observed ? cache.probabilities.data() : nullptr,
                              .probability_stride = cache.max_tokens};
    const absl::Status status =
        ops().diffkv_attention(*context,
                               {.q = q.data(),
                                .q_stride = static_cast<int64_t>(q.size()),
                                .out = out.data(),
                                .out_stride = static_cast<int64_t>(out.size()),
                                .scratch = scratch.data(),
                                .rows = &row,
                                .num_rows = 1,
                                .pages = cache.pages(),
                                .heads = heads,
                                .scale = 0.1f,
                                .sliding_window = cache.shape.sliding_window});
    ASSERT_TRUE(status.ok()) << status;
  }
};

TEST_P(DiffKvExtensionTest, TokensTakenInSeveralTimesLieAsIfTakenAtOnce) {
  for (const DiffKvTier low : {DiffKvTier{4, 2}, DiffKvTier{4, 4}}) {
    const DiffKvShape shape = {.geometry = {.kv_heads = 3, .head_dim = 64, .tiers = {{8, 4}, low}}};
    const DiffKvPrompt prompt(shape.geometry, 700);
    const std::vector<DiffKvClass> classes = RandomClasses(prompt, shape.geometry.kv_heads);
    DiffKvCache want(shape, prompt.tokens);
    Take(want, prompt, classes, 0, prompt.tokens);
    for (const std::vector<int32_t>& cuts : {std::vector<int32_t>{0, 1, 2, 700},
                                             {0, 333, 700},
                                             {0, 64, 65, 128, 129, 699, 700},
                                             {0, 600, 601, 602, 603, 700}}) {
      DiffKvCache got(shape, prompt.tokens);
      for (size_t i = 1; i < cuts.size(); ++i) {
        ASSERT_NO_FATAL_FAILURE(Take(got, prompt, classes, cuts[i - 1], cuts[i]));
      }
      ASSERT_EQ(got.counts, want.counts);
      EXPECT_EQ(got.lease.used, want.lease.used) << "a page is taken when the last is full";
      for (int32_t head = 0; head < shape.geometry.kv_heads; ++head) {
        for (int32_t tier = 0; tier < kDiffKvTiers; ++tier) {
          for (int32_t page = 0; page < shape.geometry.pages_for(tier, want.Count(head, tier));
               ++page) {
            ASSERT_TRUE(std::equal(want.PageData(head, tier, page),
                                   want.PageData(head, tier, page) + shape.geometry.page_bytes(),
                                   got.PageData(head, tier, page)))
                << "head " << head << " tier " << tier << " page " << page << "; " << SeedMessage();
          }
        }
      }
    }
  }
}

TEST_P(DiffKvExtensionTest, NewTokensAreClassifiedLikeTheEndOfAPrompt) {
  const TestContext context(ops(), 2);
  const DiffKvGeometry geometry = {.kv_heads = 2, .head_dim = 64};
  constexpr int32_t kTokens = 300;
  const DiffKvPrompt prompt(geometry, kTokens);
  for (const DiffKvScoring scoring : {DiffKvScoring::kLastWindow, DiffKvScoring::kAllLater}) {
    DiffKvPolicy policy = Policy(kTokens);
    policy.scoring = scoring;
    policy.sinks = 3;
    std::vector<DiffKvClass> all(prompt.scores.size());
    std::vector<int32_t> counts(4);
    DiffKvClassifyParams params = {.scores = prompt.scores.data(),
                                   .score_stride = kTokens,
                                   .tokens = kTokens,
                                   .kv_heads = 2,
                                   .policy = policy,
                                   .classes = all.data(),
                                   .token_counts = counts.data()};
    ASSERT_TRUE(ops().diffkv_classify(*context, params).ok());
    const std::vector<int32_t> held = {7, 0, 31, 5};
    for (const int32_t first : {1, 2, 100, 250, 290, 299}) {
      params.held = first % 4 == 2 ? held.data() : nullptr;
      const auto before = [&](size_t i) { return params.held == nullptr ? 0 : held[i]; };
      const auto tokens = static_cast<size_t>(kTokens - first);
      std::vector<DiffKvClass> some(2 * tokens);
      params.scores = prompt.scores.data() + first;
      params.first_token = first;
      params.classes = some.data();
      ASSERT_TRUE(ops().diffkv_classify(*context, params).ok());
      for (size_t head = 0; head < 2; ++head) {
        const auto begin = all.begin() + static_cast<ptrdiff_t>(head) * kTokens + first;
        EXPECT_TRUE(std::equal(some.begin() + static_cast<ptrdiff_t>(head * tokens),
                               some.begin() + static_cast<ptrdiff_t>((head + 1) * tokens),
                               begin));
        EXPECT_EQ(counts[head * 2] - before(head * 2),
                  std::count(begin, begin + kTokens - first, DiffKvClass::kHigh));
        EXPECT_EQ(counts[head * 2 + 1] - before(head * 2 + 1),
                  std::count(begin, begin + kTokens - first, DiffKvClass::kLow));
      }
    }
  }
}

TEST_P(DiffKvExtensionTest, NoOtherKeysLeaveTheBits) {
  const DiffKvShape shape = {.geometry = {.kv_heads = 2, .head_dim = 128}, .group = 4};
  const TestContext context(ops(), 2);
  const DiffKvPrompt prompt(shape.geometry, 900);
  DiffKvCache plain(shape, 900);
  plain.Load(ops(), *context, prompt, Policy(900));
  DiffKvCache merged = plain;
  const std::vector<float> q = RandomFloats(8 * 128, 2.0f);
  std::vector<float> want(q.size(), NAN);
  std::vector<float> got(q.size(), NAN);
  std::vector<float> no_lse;
  std::vector<float> lse(8, kNone);
  Attend(plain, 899, q, true, want, no_lse);
  Attend(merged, 899, q, true, got, lse);
  ExpectSameBits(got, want);
  ExpectSameCache(merged, plain);
  for (const float value : lse) EXPECT_TRUE(std::isfinite(value));
  // A query that is not observed gets the same, and the pages stay as they are.
  DiffKvCache silent = plain;
  std::vector<float> unseen(q.size(), NAN);
  Attend(silent, 899, q, false, unseen, no_lse);
  ExpectSameBits(unseen, want);
  ExpectSameCache(silent, plain);
}

TEST_P(DiffKvExtensionTest, OtherKeysShareTheSoftmax) {
  for (const int32_t window : {0, 300, 5}) {
    const DiffKvShape shape = {
        .geometry = {.kv_heads = 2, .head_dim = 64}, .group = 1, .sliding_window = window};
    SCOPED_TRACE(testing::Message() << "window " << window << "; " << SeedMessage());
    constexpr int32_t kTokens = 1500;
    constexpr int32_t kPosition = kTokens + 10;
    const TestContext context(ops(), 2);
    const DiffKvPrompt prompt(shape.geometry, kTokens);
    DiffKvCache loaded(shape, kTokens);
    loaded.Load(ReferenceOps(), *context, prompt, Policy(kTokens));
    DiffKvCache alone = loaded;
    const std::vector<float> q = RandomFloats(2 * 64, 2.0f);
    std::vector<float> alone_out(q.size());
    std::vector<float> alone_lse(2, kNone);
    Attend(alone, kPosition, q, true, alone_out, alone_lse);
    // The window of 5 shows none of the stored tokens.
    EXPECT_EQ(std::isinf(alone_lse[0]), window == 5);
    for (const float other_lse : {-3.0f, 0.5f, 4.0f, 50.0f}) {
      const std::vector<float> other = RandomFloats(q.size());
      std::vector<float> out = other;
      std::vector<float> lse(2, other_lse);
      DiffKvCache got = loaded;
      Attend(got, kPosition, q, true, out, lse);
      for (size_t head = 0; head < 2; ++head) {
        const double total = std::log(std::exp(double{alone_lse[head]}) + std::exp(other_lse));
        EXPECT_NEAR(lse[head], total, 1e-5);
        const double mine = std::exp(double{alone_lse[head]} - total);
        for (size_t i = head * 64; i < (head + 1) * 64; ++i) {
          ASSERT_NEAR(out[i], alone_out[i] * mine + other[i] * (1.0 - mine), 1e-5);
        }
        const int32_t stored =
            got.Count(static_cast<int32_t>(head), 0) + got.Count(static_cast<int32_t>(head), 1);
        for (int32_t i = 0; i < stored; ++i) {
          const size_t at = head * kTokens + static_cast<size_t>(i);
          ASSERT_NEAR(got.probabilities[at], alone.probabilities[at] * mine, 1e-5);
        }
      }
    }
  }
}

TEST_P(DiffKvExtensionTest, ProbabilitiesOfAPartAreThoseOverAllKeys) {
  constexpr int32_t kTokens = 190;
  constexpr int64_t kRows = 40;
  const DiffKvGeometry geometry = {.kv_heads = 2, .head_dim = 64};
  const DiffKvPrompt prompt(geometry, kTokens);
  const TestContext context(ops(), 2);
  std::vector<int32_t> positions(kRows);
  std::iota(positions.begin(), positions.end(), kTokens - static_cast<int32_t>(kRows));
  const std::vector<float> q = RandomFloats(kRows * 6 * 64, 2.0f);
  const SequenceRows sequence = {.row_count = kRows, .page_table = prompt.dense_table.data()};
  for (const int32_t window : {0, 30}) {
    std::vector<float> out(q.size());
    std::vector<float> lse(kRows * 6);
    const DensePages pages = {.base = const_cast<std::byte*>(prompt.dense.data()),
                              .layout = prompt.layout};
    ASSERT_TRUE(ops()
                    .paged_attention(*context,
                                     {.q = q.data(),
                                      .q_stride = 6 * 64,
                                      .positions = positions.data(),
                                      .sequences = &sequence,
                                      .num_sequences = 1,
                                      .pages = pages,
                                      .heads = 6,
                                      .scale = 0.1f,
                                      .sliding_window = window,
                                      .out = out.data(),
                                      .out_stride = 6 * 64,
                                      .lse = lse.data()})
                    .ok());
    std::vector<float> all(kRows * 2 * kTokens);
    AttentionProbabilitiesParams params = {.q = q.data(),
                                           .q_stride = 6 * 64,
                                           .positions = positions.data(),
                                           .rows = kRows,
                                           .page_table = prompt.dense_table.data(),
                                           .pages = pages,
                                           .heads = 6,
                                           .scale = 0.1f,
                                           .sliding_window = window,
                                           .probabilities = all.data(),
                                           .probability_stride = kTokens};
    ASSERT_TRUE(ops().attention_probabilities(*context, params).ok());
    for (const int32_t first : {1, 60, 64, 101, 150}) {
      const auto part_tokens = static_cast<size_t>(kTokens - first);
      std::vector<int32_t> table = prompt.dense_table;
      std::fill_n(table.begin(), first / prompt.layout.page_tokens, 1 << 28);
      std::vector<float> part(kRows * 2 * part_tokens, -7.0f);
      params.page_table = table.data();
      params.key_begin = first;
      params.lse = lse.data();
      params.probabilities = part.data();
      params.probability_stride = static_cast<int64_t>(part_tokens);
      ASSERT_TRUE(ops().attention_probabilities(*context, params).ok());
      std::vector<float> sums(2 * part_tokens, 0.25f);
      ASSERT_TRUE(ops()
                      .accumulate_scores(*context,
                                         {.probabilities = part.data(),
                                          .probability_stride = params.probability_stride,
                                          .positions = positions.data(),
                                          .rows = kRows,
                                          .first_token = first,
                                          .kv_heads = 2,
                                          .scores = sums.data(),
                                          .score_stride = params.probability_stride})
                      .ok());
      for (size_t head = 0; head < 2; ++head) {
        for (size_t token = 0; token < part_tokens; ++token) {
          double sum = 0.25;
          for (size_t row = 0; row < kRows; ++row) {
            const float want = all[(row * 2 + head) * kTokens + static_cast<size_t>(first) + token];
            ASSERT_NEAR(part[(row * 2 + head) * part_tokens + token], want, 3e-6);
            sum += want;
          }
          ASSERT_NEAR(sums[head * part_tokens + token], sum, 1e-4);
        }
      }
    }
  }
}

// Three prompts in a row: old tokens of each, and of what was generated between them, have ages
// that differ from their distances.
TEST_P(DiffKvExtensionTest, DecisionsDivideByTheQueriesThatScored) {
  constexpr int32_t kTokens = 400;
  constexpr int32_t kSteps = 120;
  const UnobservedRange unobserved[] = {
      {0, 36}, {120, 170, 3}, {200, 336}, {kTokens, INT32_MAX, 2}};
  const DiffKvShape shape = {.geometry = {.kv_heads = 2, .head_dim = 64}};
  const TestContext context(ops(), 2);
  const DiffKvPrompt prompt(shape.geometry, kTokens);
  for (const DiffKvRule rule : {DiffKvRule::kRelease, DiffKvRule::kPaper}) {
    DiffKvPolicy policy = Policy(kTokens);
    policy.rule = rule;
    policy.sinks = 2;
    DiffKvCache want(shape, kTokens + kSteps);
    want.Load(ReferenceOps(), *context, prompt, policy);
    policy.unobserved = unobserved;
    policy.unobserved_count = 4;
    DiffKvCache got = want;
    for (int32_t p = kTokens; p < kTokens + kSteps; ++p) {
      const auto seed = static_cast<uint32_t>(p);
      ASSERT_TRUE(want.Append(ReferenceOps(), *context, policy, p, seed).ok());
      ASSERT_TRUE(got.Append(ops(), *context, policy, p, seed).ok());
      ASSERT_NO_FATAL_FAILURE(ExpectSameCache(got, want)) << "position " << p;
      want.Attend(ReferenceOps(), *context, p, seed);
      got.pool = want.pool;
    }
  }
}

TEST_P(DiffKvExtensionTest, BrokenParametersAreNamed) {
  const TestContext context(ops(), 1);
  const DiffKvGeometry geometry = {.kv_heads = 1, .head_dim = 64};
  std::vector<int32_t> table(8);
  std::vector<int32_t> counts = {3, 0};
  const std::vector<int32_t> held = {4, 0};
  DiffKvLease lease;
  absl::Status status = ops().diffkv_assign_pages(
      *context,
      {.geometry = geometry,
       .layer = {.page_table = table.data(), .token_counts = counts.data(), .columns = 8},
       .held = held.data(),
       .lease = &lease});
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  const UnobservedRange crossed[] = {{5, 9}, {8, 12}};
  std::vector<float> scores(4);
  std::vector<DiffKvClass> classes(4);
  DiffKvClassifyParams classify = {.scores = scores.data(),
                                   .score_stride = 4,
                                   .tokens = 4,
                                   .kv_heads = 1,
                                   .policy = {.unobserved = crossed, .unobserved_count = 2},
                                   .classes = classes.data(),
                                   .token_counts = counts.data()};
  status = ops().diffkv_classify(*context, classify);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  const UnobservedRange shifted[] = {{0, 9, 32}};
  classify.policy = {.unobserved = shifted, .unobserved_count = 1};
  status = ops().diffkv_classify(*context, classify);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  classify.policy = {};
  classify.first_token = 5;
  status = ops().diffkv_classify(*context, classify);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
}

INSTANTIATE_TEST_SUITE_P(Backends,
                         DiffKvExtensionTest,
                         testing::ValuesIn(kBackends),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace baton::kernels
