// Each baseline by hand-made cases, and against dense attention where it leaves nothing out.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "common/kv/codec/encoded_kv.h"
#include "common/kv/codec/kv_policy.h"
#include "common/kv/pool/page_copies.h"
#include "services/lab/baselines/baseline.h"
#include "services/lab/baselines/make_baseline.h"
#include "tests/kernels/support/backends.h"
#include "tests/unit/lab/sequence_bench.h"

namespace baton::lab {
namespace {

// Attention with this scale is all but uniform, whatever is selected.
constexpr float kUniform = 1e-7f;

std::unique_ptr<Baseline> Make(const SequenceBench& bench, const std::string& policy) {
  const auto parsed = kv::ParseKvPolicy(policy);
  EXPECT_TRUE(parsed.ok()) << parsed.status();
  BaselineFactory factory(bench.setup());
  return factory.Make(*parsed->baseline());
}

std::set<int32_t> Range(int32_t begin, int32_t end) {
  std::set<int32_t> tokens;
  for (int32_t token = begin; token < end; ++token) {
    tokens.insert(token);
  }
  return tokens;
}

std::set<int32_t> Join(std::set<int32_t> a, const std::set<int32_t>& b) {
  a.insert(b.begin(), b.end());
  return a;
}

// What every head of every layer attends to when it decodes `token`.
void ExpectAttended(SequenceBench& bench,
                    Baseline& baseline,
                    int64_t token,
                    const std::set<int32_t>& expected) {
  const std::vector<float> output = bench.Decode(baseline, token, kUniform);
  for (int32_t layer = 0; layer < SequenceBench::kLayers; ++layer) {
    for (int32_t head = 0; head < SequenceBench::kHeads; ++head) {
      EXPECT_EQ(bench.AttendedTokens(output, layer, head), expected)
          << "token " << token << " layer " << layer << " head " << head;
    }
  }
}

// Per layer and KV head.
int64_t BytesPerHead(const Baseline& baseline) {
  constexpr int64_t kHeads = SequenceBench::kLayers * SequenceBench::kKvHeads;
  EXPECT_EQ(baseline.ResidentBytes() % kHeads, 0);
  return baseline.ResidentBytes() / kHeads;
}

class WholeBudgetTest : public testing::TestWithParam<std::string> {};

TEST_P(WholeBudgetTest, AnswersAreThoseOfDenseKv) {
  SCOPED_TRACE(kernels::SeedMessage());
  SequenceBench bench(150, 160, 16);
  const auto baseline = Make(bench, GetParam());
  bench.Prefill(*baseline);
  for (int64_t token = 150; token < 160; ++token) {
    kernels::ExpectSameBits(bench.Decode(*baseline, token), bench.DecodeDense(token));
  }
  const kv::AttentionCounters counters = baseline->counters();
  EXPECT_EQ(counters.heads, 10 * SequenceBench::kLayers * SequenceBench::kKvHeads);
  EXPECT_EQ(counters.attended_tokens, (10 * 150 + 55) * 4);
}

INSTANTIATE_TEST_SUITE_P(Policies,
                         WholeBudgetTest,
                         testing::Values("snapkv:budget=150",
                                         "h2o:budget=160",
                                         "streaming:budget=160",
                                         "quest:budget=160",
                                         "loki:budget=160"),
                         [](const auto& test) {
                           return test.param.substr(0, test.param.find(':'));
                         });

TEST(BudgetTest, IsTokensOrAShareOfThePrompt) {
  EXPECT_EQ(BudgetTokens({.tokens = 700}, 500), 700);
  EXPECT_EQ(BudgetTokens({.fraction = 0.35}, 500), 175);
  EXPECT_EQ(BudgetTokens({.fraction = 0.001}, 10), 1);
}

TEST(Int4Test, SixteenLevelsAreExactAndMoreAreNot) {
  SCOPED_TRACE(kernels::SeedMessage());
  SequenceBench bench(40, 42, 16);
  std::vector<float> levels(16);
  for (size_t i = 0; i < levels.size(); ++i) {
    levels[i] = 0.25f * static_cast<float>(i) - 1;
  }
  for (int64_t token = 0; token < 42; ++token) {
    bench.SetKey(token, levels);
    std::swap(levels[static_cast<size_t>(token % 15)], levels[15]);
    bench.SetValue(token, levels);
  }
  const auto exact = Make(bench, "int4");
  bench.Prefill(*exact);
  for (int64_t token = 40; token < 42; ++token) {
    kernels::ExpectSameBits(bench.Decode(*exact, token), bench.DecodeDense(token));
  }
  bench.SetValue(3, {0.1f, 0.2f, 15.0f});
  const auto rounded = Make(bench, "int4");
  bench.Prefill(*rounded);
  EXPECT_NE(bench.Decode(*rounded, 40), bench.DecodeDense(40));
}

TEST(Int4Test, BytesAreCodesScalesAndZeros) {
  SequenceBench bench(40, 42, 16);
  const auto baseline = Make(bench, "int4");
  EXPECT_EQ(baseline->ResidentBytes(), 0) << "nothing is encoded";
  bench.Prefill(*baseline);
  EXPECT_EQ(BytesPerHead(*baseline), 40 * 2 * (16 / 2 + 4));
  bench.Decode(*baseline, 40);
  EXPECT_EQ(BytesPerHead(*baseline), 41 * 2 * (16 / 2 + 4));
}

// Four levels per key channel and per value are exact in 2 bits, whatever the group.
TEST(KiviTest, FourLevelsAreExact) {
  SCOPED_TRACE(kernels::SeedMessage());
  SequenceBench bench(290, 400, 8);
  for (int64_t token = 0; token < 400; ++token) {
    std::vector<float> vector(8);
    for (size_t i = 0; i < vector.size(); ++i) {
      vector[i] = static_cast<float>((static_cast<size_t>(token) + i) % 4) + 0.5f;
    }
    bench.SetKey(token, vector);
    bench.SetValue(token, vector);
  }
  const auto baseline = Make(bench, "kivi");
  bench.Prefill(*baseline);
  for (int64_t token = 290; token < 400; ++token) {
    kernels::ExpectSameBits(bench.Decode(*baseline, token), bench.DecodeDense(token));
  }
}

TEST(KiviTest, TheResidualIsExactUntilItFillsABlock) {
  SCOPED_TRACE(kernels::SeedMessage());
  SequenceBench bench(100, 129, 8);
  const auto baseline = Make(bench, "kivi");
  bench.Prefill(*baseline);
  for (int64_t token = 100; token < 127; ++token) {
    kernels::ExpectSameBits(bench.Decode(*baseline, token), bench.DecodeDense(token));
  }
  EXPECT_NE(bench.Decode(*baseline, 127), bench.DecodeDense(127));
}

TEST(KiviTest, BytesAreBlocksOfKeysValuesPerTokenAndTheResidual) {
  SequenceBench bench(290, 400, 64);
  const auto baseline = Make(bench, "kivi");
  bench.Prefill(*baseline);
  // Keys: 256 in codes of 2 bits with 8 groups of 32 tokens per channel, 34 exact (fp32). Values:
  // 162 in codes with 2 groups of 32 channels each, 128 exact.
  const int64_t keys = 256 * 64 / 4 + 8 * 64 * 4 + 34 * 64 * 4;
  const int64_t values = 162 * (64 / 4 + 2 * 4) + 128 * 64 * 4;
  EXPECT_EQ(BytesPerHead(*baseline), keys + values);
}

TEST(StreamingTest, KeepsSinksAndTheNewest) {
  SequenceBench bench(12, 20, 32);
  bench.MarkValues();
  const auto baseline = Make(bench, "streaming:budget=7");
  EXPECT_EQ(baseline->first_observed(), 12) << "no queries are needed";
  bench.Prefill(*baseline);
  EXPECT_EQ(BytesPerHead(*baseline), 7 * 2 * 32 * 4);
  for (int32_t token = 12; token < 20; ++token) {
    ExpectAttended(bench, *baseline, token, Join(Range(0, 4), Range(token - 2, token + 1)));
  }
  EXPECT_EQ(baseline->counters().attended_tokens, 8 * 7 * 4);
}

TEST(StreamingTest, FillsItsBudgetBeforeItEvicts) {
  SequenceBench bench(5, 20, 32);
  bench.MarkValues();
  const auto baseline = Make(bench, "streaming:budget=7");
  bench.Prefill(*baseline);
  ExpectAttended(bench, *baseline, 5, Range(0, 6));
  ExpectAttended(bench, *baseline, 6, Range(0, 7));
  ExpectAttended(bench, *baseline, 7, {0, 1, 2, 3, 5, 6, 7});
  ExpectAttended(bench, *baseline, 8, {0, 1, 2, 3, 6, 7, 8});
}

TEST(StreamingTest, ASmallBudgetHasFewerSinks) {
  SequenceBench bench(5, 8, 8);
  bench.MarkValues();
  const auto baseline = Make(bench, "streaming:budget=2");
  bench.Prefill(*baseline);
  ExpectAttended(bench, *baseline, 5, {0, 5});
  ExpectAttended(bench, *baseline, 6, {0, 6});
}

// The window's queries look at token 20 alone; pooling makes 17 to 23 equal.
TEST(SnapKvTest, KeepsTheWindowAndPooledVotes) {
  SequenceBench bench(100, 104, 128);
  bench.MarkValues();
  bench.SetAllKeys(0.0f);
  bench.SetAllQueries(0.0f);
  bench.SetKey(20, {10.0f});
  for (int64_t token = 36; token < 100; ++token) {
    bench.SetQuery(token, {1.0f});
  }
  const auto baseline = Make(bench, "snapkv:budget=69");
  EXPECT_EQ(baseline->first_observed(), 36);
  bench.Prefill(*baseline);
  EXPECT_EQ(BytesPerHead(*baseline), 69 * 2 * 128 * 4);
  ExpectAttended(bench, *baseline, 100, Join(Range(17, 22), Range(36, 101)));
  ExpectAttended(bench, *baseline, 101, Join(Range(17, 22), Range(36, 102)));
}

TEST(SnapKvTest, ABudgetWithinTheWindowKeepsTheNewest) {
  SequenceBench bench(100, 104, 128);
  bench.MarkValues();
  const auto baseline = Make(bench, "snapkv:budget=10");
  bench.Prefill(*baseline);
  ExpectAttended(bench, *baseline, 100, Range(90, 101));
}

// Four levels in every value but those of `fine` tokens, which have sixteen: exact in 4 bits, not
// in 2. Keys are equal, so that attention is uniform.
void SetValueLevels(SequenceBench& bench, const std::set<int32_t>& fine) {
  bench.SetAllKeys(0.0f);
  for (int32_t token = 0; token < bench.setup().max_tokens; ++token) {
    std::vector<float> value(static_cast<size_t>(bench.head_dim()));
    for (size_t i = 0; i < value.size(); ++i) {
      value[i] = static_cast<float>(fine.contains(token) ? i % 16 : i % 4 * 5);
    }
    bench.SetValue(token, value);
  }
}

// Whether the first decode step answers like dense KV.
bool AnswersLikeDense(SequenceBench& bench, const std::string& policy) {
  const auto baseline = Make(bench, policy);
  bench.Prefill(*baseline, 1.0f);
  const int64_t token = bench.setup().prompt_tokens;
  return bench.Decode(*baseline, token) == bench.DecodeDense(token);
}

TEST(StaticTest, AShareOfOneIsTheHighTierEverywhere) {
  SCOPED_TRACE(kernels::SeedMessage());
  SequenceBench bench(100, 104, 16);
  const auto all = Make(bench, "static:share=1,high=k4v4");
  const auto int4 = Make(bench, "int4");
  const std::vector<kv::EncodedKv*> both = {all.get(), int4.get()};
  bench.Prefill(both, 30);
  for (int64_t token = 100; token < 104; ++token) {
    kernels::ExpectSameBits(bench.Decode(*all, token), bench.Decode(*int4, token));
    EXPECT_EQ(all->ResidentBytes(), int4->ResidentBytes());
  }
}

TEST(StaticTest, AShareOfZeroLeavesTheWindowAndGeneratedTokens) {
  SequenceBench bench(100, 104, 16);
  for (const int32_t token : {36, 99, 100}) {
    SetValueLevels(bench, {token});
    EXPECT_TRUE(AnswersLikeDense(bench, "static:share=0")) << token;
  }
  for (const int32_t token : {0, 35}) {
    SetValueLevels(bench, {token});
    EXPECT_FALSE(AnswersLikeDense(bench, "static:share=0")) << token;
    EXPECT_TRUE(AnswersLikeDense(bench, "static:share=1")) << token;
  }
}

// The window's queries look at tokens 20 and 9, in this order; the last token's key is larger but
// in the window whatever it gets.
TEST(StaticTest, HighAreTheWindowAndTheTokensWithMostAttentionOfIt) {
  SequenceBench bench(100, 104, 16);
  const auto set = [&](int32_t fine) {
    SetValueLevels(bench, {fine});
    bench.SetAllQueries(0.0f);
    bench.SetKey(20, {3.0f});
    bench.SetKey(9, {2.0f});
    bench.SetKey(50, {0.0f, 9.0f});
    bench.SetKey(99, {4.0f});
    for (int64_t token = 0; token < 100; ++token) {
      bench.SetQuery(token, token < 36 ? std::vector<float>{0.0f, 9.0f} : std::vector<float>{1.0f});
    }
  };
  EXPECT_EQ(Make(bench, "static:share=0.66")->first_observed(), 36);
  set(20);
  EXPECT_FALSE(AnswersLikeDense(bench, "static:share=0.64"));
  EXPECT_TRUE(AnswersLikeDense(bench, "static:share=0.65"));
  set(9);
  EXPECT_FALSE(AnswersLikeDense(bench, "static:share=0.65"));
  EXPECT_TRUE(AnswersLikeDense(bench, "static:share=0.66"));
  set(21);
  EXPECT_FALSE(AnswersLikeDense(bench, "static:share=0.66")) << "votes are not pooled";
}

// Keys of sixteen levels and values of four.
TEST(StaticTest, KeysAndValuesHaveTheirOwnWidths) {
  SequenceBench bench(30, 34, 16);
  SetValueLevels(bench, {});
  std::vector<float> levels(16);
  std::iota(levels.begin(), levels.end(), 0.0f);
  for (int64_t token = 0; token < 34; ++token) {
    std::swap(levels[static_cast<size_t>(token % 15)], levels[15]);
    bench.SetKey(token, levels);
  }
  EXPECT_TRUE(AnswersLikeDense(bench, "static:share=1,high=k4v2"));
  bench.SetValue(3, levels);
  EXPECT_FALSE(AnswersLikeDense(bench, "static:share=1,high=k4v2"));
  EXPECT_TRUE(AnswersLikeDense(bench, "static:share=1,high=k4v4"));
}

TEST(StaticTest, BytesAreCodesScalesAndZerosOfBothTiers) {
  SequenceBench bench(200, 204, 64);
  const auto baseline = Make(bench, "static:share=0.4");
  EXPECT_EQ(baseline->ResidentBytes(), 0) << "nothing is encoded";
  bench.Prefill(*baseline);
  constexpr int64_t kHigh = (8 + 4) * 64 / 8 + 2 * 4;
  constexpr int64_t kLow = (4 + 2) * 64 / 8 + 2 * 4;
  EXPECT_EQ(BytesPerHead(*baseline), 80 * kHigh + 120 * kLow);
  bench.Decode(*baseline, 200);
  EXPECT_EQ(BytesPerHead(*baseline), 81 * kHigh + 120 * kLow);
}

// Every query looks at tokens 2, 5 and 7.
TEST(H2oTest, KeepsHeavyHittersAndTheNewest) {
  SequenceBench bench(12, 16, 16);
  bench.MarkValues();
  bench.SetAllKeys(0.0f);
  for (const int64_t heavy : {2, 5, 7}) {
    bench.SetKey(heavy, {5.0f});
  }
  bench.SetAllQueries(0.0f);
  for (int64_t token = 0; token < 12; ++token) {
    bench.SetQuery(token, {1.0f});
  }
  const auto baseline = Make(bench, "h2o:budget=6");
  EXPECT_EQ(baseline->first_observed(), 0);
  bench.Prefill(*baseline, 1.0f);
  EXPECT_EQ(BytesPerHead(*baseline), 6 * (2 * 16 * 4 + 8));
  ExpectAttended(bench, *baseline, 12, {2, 5, 7, 10, 11, 12});
  ExpectAttended(bench, *baseline, 13, {2, 5, 7, 11, 12, 13});
}

// Token 12 draws the attention of decode steps, so it outlives token 0, the prompt's second.
TEST(H2oTest, DecodeStepsCountToo) {
  SequenceBench bench(12, 20, 32);
  bench.MarkValues();
  bench.SetAllKeys(0.0f);
  bench.SetAllQueries(0.0f);
  bench.SetKey(2, {5.0f});
  bench.SetKey(12, {0.0f, 9.0f});
  for (int64_t token = 0; token < 20; ++token) {
    bench.SetQuery(token, token < 12 ? std::vector<float>{1.0f} : std::vector<float>{0.0f, 1.0f});
  }
  const auto baseline = Make(bench, "h2o:budget=4");
  bench.Prefill(*baseline, 1.0f);
  for (int64_t token = 12; token < 17; ++token) {
    bench.Decode(*baseline, token, 1.0f);
  }
  // Heavy: 2 from the prompt, 12 from decode; recent: the newest two.
  ExpectAttended(bench, *baseline, 17, {2, 12, 16, 17});
}

// Token 1 is large along channel 0, token 6 small along channel 1.
TEST(QuestTest, ChoosesPagesByBoundsOfBothSigns) {
  SequenceBench bench(10, 14, 16);
  bench.MarkValues();
  bench.SetAllKeys(0.0f);
  bench.SetKey(1, {5.0f});
  bench.SetKey(6, {0.0f, -5.0f});
  bench.SetAllQueries(0.0f);
  bench.SetQuery(10, {1.0f});
  bench.SetQuery(11, {0.0f, -1.0f});
  bench.SetQuery(12, {-1.0f, 1.0f, 1.0f});
  const auto baseline = Make(bench, "quest:budget=8,page=4");
  bench.Prefill(*baseline);
  // 10 tokens and the two bounds of 3 pages.
  EXPECT_EQ(BytesPerHead(*baseline), (10 + 3) * 2 * 16 * 4);
  ExpectAttended(bench, *baseline, 10, Join(Range(0, 4), Range(8, 11)));
  ExpectAttended(bench, *baseline, 11, Range(4, 12));
  // A new page; those before are equal (bounds 0), so the first is chosen.
  ExpectAttended(bench, *baseline, 12, Join(Range(0, 4), Range(12, 13)));
  EXPECT_EQ(baseline->counters().attended_tokens, (7 + 8 + 5) * 4);
}

TEST(QuestTest, GeneratedTokensMoveTheBoundsOfTheirPage) {
  SequenceBench bench(9, 20, 32);
  bench.MarkValues();
  bench.SetAllKeys(0.0f);
  bench.SetKey(10, {3.0f});
  bench.SetAllQueries(0.0f);
  bench.SetQuery(13, {1.0f});
  const auto baseline = Make(bench, "quest:budget=8,page=4");
  bench.Prefill(*baseline);
  for (int64_t token = 9; token < 13; ++token) {
    bench.Decode(*baseline, token, kUniform);
  }
  ExpectAttended(bench, *baseline, 13, Range(8, 14));
}

// Keys vary along channel 3 only, so one component ranks them exactly.
TEST(LokiTest, RanksByPrincipalComponents) {
  SequenceBench bench(12, 16, 16);
  bench.MarkValues();
  bench.SetAllKeys(0.5f);
  const std::vector<float> along = {4, -1, 9, 0, 2, 7, -5, 1, 3, 8, -2, 5, 6, -9};
  for (size_t token = 0; token < along.size(); ++token) {
    bench.SetKey(static_cast<int64_t>(token), {0.5f, 0.5f, 0.5f, along[token]});
  }
  bench.SetAllQueries(0.0f);
  bench.SetQuery(12, {0, 0, 0, 1});
  bench.SetQuery(13, {0, 0, 0, -1});
  const auto baseline = Make(bench, "loki:budget=4");
  bench.Prefill(*baseline);
  // Tokens and a basis of 16 x 16.
  EXPECT_EQ(BytesPerHead(*baseline), 12 * 2 * 16 * 4 + 16 * 16 * 4);
  ExpectAttended(bench, *baseline, 12, {2, 5, 9, 12});
  ExpectAttended(bench, *baseline, 13, {1, 6, 10, 13});
}

TEST(BaselineTest, SlidingWindowsAndHandOffsAreRefused) {
  SequenceBench bench(10, 12, 8);
  const auto baseline = Make(bench, "int4");
  bench.Prefill(*baseline);
  EXPECT_EQ(baseline->AttendToken({.sliding_window = 4}, 0).code(),
            absl::StatusCode::kUnimplemented);
  EXPECT_EQ(baseline->Adopt("", 1).code(), absl::StatusCode::kUnimplemented);
  EXPECT_EQ(baseline->SentPages("", 1).status().code(), absl::StatusCode::kUnimplemented);
  const auto other = Make(bench, "int4");
  std::vector<kv::PageCopies> copies;
  EXPECT_EQ(baseline->CopyTo(*other, copies).code(), absl::StatusCode::kUnimplemented);
}

}  // namespace
}  // namespace baton::lab
