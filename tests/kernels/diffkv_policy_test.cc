// Decisions of format `diffkv` done by hand: classes of prompt tokens, the release's decision table
// and Algorithm 1 of the paper.
#include "kernels/ops/diffkv_policy.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>

#include "kernels/kv_format/unobserved_range.h"
#include "kernels/ops/diffkv_params.h"

namespace baton::kernels {
namespace {

constexpr DiffKvClass kHigh = DiffKvClass::kHigh;
constexpr DiffKvClass kLow = DiffKvClass::kLow;
constexpr DiffKvClass kPruned = DiffKvClass::kPruned;

TEST(DiffKvPolicyTest, MeansAreTakenOverTheLast64Queries) {
  const DiffKvPolicy policy = {.alpha_high = 1.0f, .alpha_low = 0.25f, .window = 8};
  // 128 tokens: token 0 is scored by 64 queries; high from a mean of 1 / 128 on, a sum of 0.5.
  EXPECT_EQ(ClassifyPromptToken(policy, 0.5f, 0, 128), kHigh);
  EXPECT_EQ(ClassifyPromptToken(policy, 0.49f, 0, 128), kLow);
  EXPECT_EQ(ClassifyPromptToken(policy, 0.125f, 0, 128), kLow);
  EXPECT_EQ(ClassifyPromptToken(policy, 0.12f, 0, 128), kPruned);
  // Token 96 is scored by 32 queries, its own included.
  EXPECT_EQ(ClassifyPromptToken(policy, 0.25f, 96, 128), kHigh);
  EXPECT_EQ(ClassifyPromptToken(policy, 0.24f, 96, 128), kLow);
}

TEST(DiffKvPolicyTest, PromptsShorterThanTheWindowOfQueries) {
  const DiffKvPolicy policy = {.alpha_high = 1.0f, .alpha_low = 0.5f, .window = 4};
  // 16 tokens: token 0 has 16 queries, token 8 has 8.
  EXPECT_EQ(ClassifyPromptToken(policy, 1.0f, 0, 16), kHigh);
  EXPECT_EQ(ClassifyPromptToken(policy, 0.99f, 0, 16), kLow);
  EXPECT_EQ(ClassifyPromptToken(policy, 0.5f, 8, 16), kHigh);
  EXPECT_EQ(ClassifyPromptToken(policy, 0.24f, 8, 16), kPruned);
}

TEST(DiffKvPolicyTest, WindowAndSinksStayHigh) {
  const DiffKvPolicy policy = {.alpha_high = 1.0f, .alpha_low = 1.0f, .window = 8, .sinks = 2};
  for (int64_t position = 0; position < 100; ++position) {
    const bool kept = position < 2 || position >= 92;
    EXPECT_EQ(ClassifyPromptToken(policy, 0.0f, position, 100), kept ? kHigh : kPruned);
  }
}

TEST(DiffKvPolicyTest, AllLaterQueriesAndTheIndexAsBase) {
  const DiffKvPolicy policy = {.alpha_high = 1.0f,
                               .alpha_low = 0.5f,
                               .scoring = DiffKvScoring::kAllLater,
                               .base = DiffKvBase::kIndex,
                               .window = 0};
  // Token 4 (the fifth) of 15 has 10 later ones; its threshold is 1/5, a sum of 2.
  EXPECT_EQ(ClassifyPromptToken(policy, 2.0f, 4, 15), kHigh);
  EXPECT_EQ(ClassifyPromptToken(policy, 1.9f, 4, 15), kLow);
  EXPECT_EQ(ClassifyPromptToken(policy, 0.9f, 4, 15), kPruned);
  EXPECT_EQ(ClassifyPromptToken(policy, 0.0f, 14, 15), kHigh) << "the last has no later token";
}

TEST(DiffKvPolicyTest, AgesCountTheQueriesThatWereObserved) {
  EXPECT_EQ(DiffKvUnobserved(0, 10), (UnobservedRange{0, 0}));
  EXPECT_EQ(DiffKvUnobserved(50, 60), (UnobservedRange{50, 50}));
  EXPECT_EQ(DiffKvUnobserved(50, 200), (UnobservedRange{50, 136}));
  // A prompt of 100 tokens, 20 generated, extended to 300 tokens.
  const UnobservedRange unobserved[] = {DiffKvUnobserved(0, 100), DiffKvUnobserved(120, 300)};
  EXPECT_EQ(unobserved[0], (UnobservedRange{0, 36}));
  EXPECT_EQ(unobserved[1], (UnobservedRange{120, 236}));
  const DiffKvPolicy policy = {.unobserved = unobserved, .unobserved_count = 2};
  for (const int32_t position : {300, 301, 1000}) {
    for (int32_t token = 0; token <= position; ++token) {
      int32_t queries = 0;
      for (int32_t p = token; p < position; ++p) {
        queries += p < 36 || (p >= 120 && p < 236) ? 0 : 1;
      }
      ASSERT_EQ(DiffKvAge(policy, token, position), queries) << token << " at " << position;
    }
  }
  EXPECT_EQ(DiffKvAge({}, 3, 10), 7) << "without ranges every query counts";
  constexpr int32_t kLeast = std::numeric_limits<int32_t>::min();
  constexpr int32_t kMost = std::numeric_limits<int32_t>::max();
  EXPECT_EQ(DiffKvAge(policy, kLeast, 300), kLeast + 300 - 36 - 116) << "wraps";
  EXPECT_EQ(DiffKvAge(policy, kMost, 300), kLeast + 301) << "wraps";
}

TEST(DiffKvPolicyTest, AgesCountTheGeneratedTokensThatScored) {
  // Of the tokens that a prompt of 100 and one of 300 are followed by, every 8th and every 4th.
  const UnobservedRange unobserved[] = {DiffKvUnobserved(0, 100),
                                        {.begin = 100, .end = 120, .observed_shift = 3},
                                        DiffKvUnobserved(120, 300),
                                        {.begin = 300, .end = INT32_MAX, .observed_shift = 2}};
  const DiffKvPolicy policy = {.unobserved = unobserved, .unobserved_count = 4};
  const auto scored = [](int32_t p) {
    if (p < 100) return p >= 36;
    if (p < 120) return (p + 1) % 8 == 0;
    return p < 300 ? p >= 236 : (p + 1) % 4 == 0;
  };
  for (const int32_t position : {100, 103, 119, 300, 303, 304, 1000}) {
    for (int32_t token = 0; token <= position; ++token) {
      int32_t queries = 0;
      for (int32_t p = token; p < position; ++p) {
        queries += scored(p) ? 1 : 0;
      }
      ASSERT_EQ(DiffKvAge(policy, token, position), queries) << token << " at " << position;
    }
  }
}

TEST(DiffKvPolicyTest, TokensCompeteOnceTheyWereScoredAndHaveLeftTheWindow) {
  const DiffKvPolicy policy = {.window = 16, .sinks = 2};
  EXPECT_TRUE(DiffKvCompetes(policy, 84, 100, 1));
  EXPECT_FALSE(DiffKvCompetes(policy, 85, 100, 15)) << "in the window";
  EXPECT_FALSE(DiffKvCompetes(policy, 84, 100, 0)) << "no query scored it";
  EXPECT_FALSE(DiffKvCompetes(policy, 1, 100, 99)) << "a sink";
}

void ExpectAction(const DiffKvAction& got, const DiffKvAction& want) {
  EXPECT_EQ(got.high_slot, want.high_slot);
  EXPECT_EQ(got.demoted_to, want.demoted_to);
  EXPECT_EQ(got.appended, want.appended);
  EXPECT_EQ(got.low_appended, want.low_appended);
}

// At position 100: demotion below 0.02, pruning below 0.005.
constexpr DiffKvPolicy kRelease = {.alpha_high = 2.0f, .alpha_low = 0.5f, .window = 8};
constexpr DiffKvPolicy kPaper = {
    .alpha_high = 2.0f, .alpha_low = 0.5f, .rule = DiffKvRule::kPaper, .window = 8};

TEST(DiffKvPolicyTest, ReleaseTable) {
  const auto decide = [](DiffKvHeadState head) { return DecideDiffKv(kRelease, 100, head); };
  const DiffKvVictim dead = {.mean = 0.004f, .slot = 3};
  const DiffKvVictim deader = {.mean = 0.003f, .slot = 5};
  const DiffKvVictim weak = {.mean = 0.01f, .slot = 7};
  const DiffKvVictim strong = {.mean = 0.03f, .slot = 9};
  const DiffKvAction append = {.high_slot = 40, .appended = true};
  // Fewer tokens than the window.
  ExpectAction(decide({.counts = {4, 3}, .victims = {dead, {}}}),
               {.high_slot = 4, .appended = true});
  // The high victim is pruned when it is below alpha_low and below the low victim.
  ExpectAction(decide({.counts = {40, 20}, .victims = {dead, weak}}), {.high_slot = 3});
  ExpectAction(decide({.counts = {40, 0}, .victims = {dead, {}}}), {.high_slot = 3});
  // It replaces a low victim below alpha_low that is no better, on a tie too.
  ExpectAction(decide({.counts = {40, 20}, .victims = {dead, deader}}),
               {.high_slot = 3, .demoted_to = 5});
  ExpectAction(decide({.counts = {40, 20}, .victims = {dead, dead}}),
               {.high_slot = 3, .demoted_to = 3});
  ExpectAction(decide({.counts = {40, 20}, .victims = {weak, dead}}),
               {.high_slot = 7, .demoted_to = 3});
  // It moves behind the low tokens.
  ExpectAction(decide({.counts = {40, 20}, .victims = {weak, weak}}),
               {.high_slot = 7, .demoted_to = 20, .low_appended = true});
  // Nobody is below alpha_high, or nobody competes.
  ExpectAction(decide({.counts = {40, 20}, .victims = {strong, dead}}), append);
  ExpectAction(decide({.counts = {40, 20}, .victims = {}}), append);
}

TEST(DiffKvPolicyTest, AlgorithmOne) {
  const auto decide = [](DiffKvHeadState head) { return DecideDiffKv(kPaper, 100, head); };
  const DiffKvVictim dead = {.mean = 0.004f, .slot = 3};
  const DiffKvVictim weak = {.mean = 0.01f, .slot = 7};
  const DiffKvVictim strong = {.mean = 0.03f, .slot = 9};
  const DiffKvAction append = {.high_slot = 40, .appended = true};
  // No token leaves the window.
  ExpectAction(decide({.counts = {40, 20}, .victims = {dead, dead}}), append);
  // Lines 5 to 11: the candidate stays high, the least of the high tokens is demoted or pruned.
  ExpectAction(decide({.counts = {40, 20}, .victims = {strong, dead}, .candidate = strong}),
               append);
  ExpectAction(decide({.counts = {40, 20}, .victims = {weak, dead}, .candidate = strong}),
               {.high_slot = 7, .demoted_to = 20, .low_appended = true});
  ExpectAction(decide({.counts = {40, 20}, .victims = {dead, dead}, .candidate = strong}),
               {.high_slot = 3});
  // Lines 13 to 17: the candidate goes low, over the least low token when that is to be pruned.
  ExpectAction(decide({.counts = {40, 20}, .victims = {dead, weak}, .candidate = weak}),
               {.high_slot = 7, .demoted_to = 20, .low_appended = true});
  ExpectAction(decide({.counts = {40, 20}, .victims = {dead, dead}, .candidate = weak}),
               {.high_slot = 7, .demoted_to = 3});
  // Otherwise the candidate is dropped.
  ExpectAction(decide({.counts = {40, 20}, .victims = {dead, dead}, .candidate = dead}),
               {.high_slot = 3});
}

TEST(DiffKvPolicyTest, EqualAlphasTurnTheLowTierOff) {
  DiffKvPolicy policy = kRelease;
  policy.alpha_low = policy.alpha_high;
  const DiffKvVictim dead = {.mean = 0.004f, .slot = 3};
  ExpectAction(DecideDiffKv(policy, 100, {.counts = {40, 0}, .victims = {dead, {}}}),
               {.high_slot = 3});
  EXPECT_EQ(ClassifyPromptToken(policy, 0.0f, 0, 100), kPruned);
}

}  // namespace
}  // namespace baton::kernels
