// Sizes and offsets of format `shadowkv`: who computes them differently cannot read the bytes.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "kernels/kv_format/shadowkv.h"
#include "kernels/kv_format/shadowkv_codec.h"

namespace baton::kernels {
namespace {

// Two heads of 8 channels, chunks of 2.
constexpr ShadowKvConfig kTiny = {.rank = 3,
                                  .chunk_tokens = 2,
                                  .budget_tokens = 4,
                                  .outlier_chunks = 1,
                                  .local_chunks = 1,
                                  .sink_chunks = 1,
                                  .kv_heads = 2,
                                  .head_dim = 8};

TEST(ShadowKvLayoutTest, PromptSectionOfATinyPrompt) {
  // 11 tokens: 5 whole chunks, 4 of them coded (8 tokens), 3 local tokens.
  const ShadowKvPromptLayout layout(kTiny, 11);
  EXPECT_EQ(layout.coded.tokens, 8);
  EXPECT_EQ(layout.coded.chunks, 4);
  EXPECT_EQ(layout.local_tokens, 3);
  EXPECT_EQ(layout.static_chunks, 2);
  EXPECT_EQ(layout.basis, 0u);            // 3 x 16 x 2 = 96
  EXPECT_EQ(layout.coded_begin, 128u);    // see below: 448
  EXPECT_EQ(layout.static_ids, 576u);     // 2 x 2 x 4 = 16
  EXPECT_EQ(layout.static_keys, 640u);    // 2 x 2 x 2 x 8 x 2 = 128
  EXPECT_EQ(layout.static_values, 768u);  // 128
  EXPECT_EQ(layout.local_keys, 896u);     // 2 x 3 x 8 x 2 = 96
  EXPECT_EQ(layout.local_values, 1024u);
  EXPECT_EQ(layout.bytes, 1152u);
  EXPECT_EQ(layout.coded.coefficients, 0u);  // 8 x 3 x 2 = 48
  EXPECT_EQ(layout.coded.landmarks, 64u);    // 2 x 4 x 8 x 2 = 128
  EXPECT_EQ(layout.coded.values, 192u);      // 2 x 8 x 8 x 2 = 256
  EXPECT_EQ(layout.coded.bytes, 448u);
}

TEST(ShadowKvLayoutTest, CodesTakeTheirOwnSections) {
  ShadowKvConfig config = kTiny;
  config.selector = ShadowKvSelector::kQ2;
  config.value_bits = 4;
  config.int8_coefficients = true;
  const ShadowKvCodedLayout layout(config, 66);
  EXPECT_EQ(layout.coefficients, 0u);  // 66 x 3 = 198
  // 2 groups x 3 x 2 = 12
  EXPECT_EQ(ShadowKvCoefficientLayout(config, 66).scales, 256u);
  EXPECT_EQ(layout.landmarks, 320u);
  EXPECT_EQ(layout.deviations, 320u);
  EXPECT_EQ(layout.key_codes, 320u);      // 2 x 66 x 2 = 264
  EXPECT_EQ(layout.key_scales, 640u);     // 2 x 66 x 4 = 528
  EXPECT_EQ(layout.values, 1216u);        // 2 x 66 x 4 = 528
  EXPECT_EQ(layout.value_scales, 1792u);  // 528
  EXPECT_EQ(layout.bytes, 2368u);
  config.value_clusters = 3;
  const ShadowKvCodedLayout clustered(config, 66);
  EXPECT_EQ(clustered.cluster_ids, 1216u);  // 2 x 66 = 132
  EXPECT_EQ(clustered.values, 1408u);
  const ShadowKvPromptLayout prompt(config, 11);
  EXPECT_EQ(prompt.cluster_values, 128u);
  EXPECT_EQ(prompt.coded_begin, 256u);  // 2 x 3 x 8 x 2 = 96
  config.value_clusters = 0;
  config.selector = ShadowKvSelector::kBounds;
  const ShadowKvCodedLayout bounds(config, 66);
  EXPECT_EQ(bounds.deviations - bounds.landmarks, 1088u);  // 2 x 33 x 8 x 2 = 1056
}

TEST(ShadowKvLayoutTest, LandmarksInCodesHaveScalesBehindThem) {
  ShadowKvConfig config = kTiny;
  config.landmark_bits = 8;
  const ShadowKvCodedLayout layout(config, 66);
  EXPECT_EQ(layout.landmarks, 448u);         // 66 x 3 x 2 = 396
  EXPECT_EQ(layout.landmark_scales, 1024u);  // 2 x 33 x 8 = 528
  EXPECT_EQ(layout.deviations, 1344u);       // 2 x 33 x 4 = 264
  EXPECT_EQ(layout.values, 1344u);
}

TEST(ShadowKvLayoutTest, ValuesApartHaveABlockOfTheirOwn) {
  ShadowKvConfig config = kTiny;
  config.value_bits = 4;
  const ShadowKvPromptLayout together(config, 11);
  config.values_apart = true;
  const ShadowKvPromptLayout apart(config, 11);
  EXPECT_EQ(together.coded.value_bytes, 0u);
  EXPECT_EQ(together.coded.values, 192u);        // 2 x 8 x 4 = 64
  EXPECT_EQ(together.coded.value_scales, 256u);  // 2 x 8 x 4 = 64
  EXPECT_EQ(apart.coded.values, 0u);
  EXPECT_EQ(apart.coded.value_bytes, 64u);
  EXPECT_EQ(apart.coded.value_scales, 192u);
  EXPECT_EQ(apart.bytes, together.bytes - 64);

  const ShadowKvTailLayout tail(apart, 200);
  EXPECT_EQ(tail.value_block_begin(2), 2u * 512u);  // 2 x 64 x 4 = 512
  EXPECT_EQ(tail.block.bytes, ShadowKvTailLayout(together, 200).block.bytes - 512);
  EXPECT_EQ(tail.WrittenBytes(200), ShadowKvTailLayout(together, 200).WrittenBytes(200));
}

TEST(ShadowKvLayoutTest, CachesHoldValuesDequantizedOrThoseApartAsTheyAreStored) {
  ShadowKvConfig config = kTiny;
  const auto bytes = [&config](ShadowKvCachedValues values) {
    return ShadowKvCacheLayout(config, values).bytes;
  };
  // Ids, slots and keys of 2 x 2 chunks of 2 tokens: 64, 64, 2 x 2 x 2 x 16 = 128.
  EXPECT_EQ(bytes(ShadowKvCachedValues::kDequantized), 256u);
  EXPECT_EQ(bytes(ShadowKvCachedValues::kStored), 256u);
  config.value_bits = 4;
  EXPECT_EQ(bytes(ShadowKvCachedValues::kDequantized), 384u);
  EXPECT_EQ(bytes(ShadowKvCachedValues::kStored), 256u);
  config.values_apart = true;
  EXPECT_EQ(bytes(ShadowKvCachedValues::kDequantized), 384u);
  EXPECT_EQ(bytes(ShadowKvCachedValues::kStored), 320u);  // 2 x 2 x 2 x 4 = 32
}

TEST(ShadowKvLayoutTest, EveryPromptLengthSplitsIntoCodedAndLocalTokens) {
  ShadowKvConfig config = kTiny;
  config.chunk_tokens = 8;
  config.local_chunks = 4;
  for (int64_t tokens = 1; tokens < 100; ++tokens) {
    const ShadowKvPromptLayout layout(config, tokens);
    EXPECT_EQ(layout.coded.tokens, std::max<int64_t>(0, 8 * (tokens / 8 - 4)));
    EXPECT_EQ(layout.coded.tokens + layout.local_tokens, tokens);
    EXPECT_EQ(layout.static_chunks, std::min<int64_t>(2, layout.coded.chunks));
  }
}

TEST(ShadowKvLayoutTest, PrefersDenseUpToTheAttendedTokens) {
  // Budget 4, static 2 chunks of 2, local 2 or 3: 10 or 11 tokens are attended anyway.
  EXPECT_TRUE(ShadowKvPromptLayout(kTiny, 2).prefers_dense());
  EXPECT_TRUE(ShadowKvPromptLayout(kTiny, 10).prefers_dense());
  EXPECT_TRUE(ShadowKvPromptLayout(kTiny, 11).prefers_dense());
  EXPECT_FALSE(ShadowKvPromptLayout(kTiny, 12).prefers_dense());
}

TEST(ShadowKvLayoutTest, TailCodesABlockWheneverItsExactTokensReachTheLimit) {
  const ShadowKvPromptLayout prompt(kTiny, 11);  // 8 coded
  const ShadowKvTailLayout tail(prompt, 1000);
  EXPECT_EQ(tail.exact_limit, 128);
  EXPECT_EQ(tail.exact_slots, 128);
  EXPECT_EQ(tail.BlocksAt(11), 0);
  EXPECT_EQ(tail.BlocksAt(8 + 127), 0);
  EXPECT_EQ(tail.BlocksAt(8 + 128), 1);
  EXPECT_EQ(tail.BlocksAt(8 + 191), 1);
  EXPECT_EQ(tail.BlocksAt(8 + 192), 2);
  EXPECT_EQ(tail.BlockDueAt(8 + 126), std::nullopt);
  EXPECT_EQ(tail.BlockDueAt(8 + 127), 0);
  EXPECT_EQ(tail.BlockDueAt(8 + 128), std::nullopt);
  EXPECT_EQ(tail.BlockDueAt(8 + 191), 1);
  for (int64_t tokens = 11; tokens <= 1011; ++tokens) {
    const int64_t exact = tokens - tail.CodedTokensAt(tokens);
    EXPECT_LT(exact, tail.exact_limit);
    EXPECT_GE(exact, std::min<int64_t>(tokens - 8, 64));
    EXPECT_EQ((tail.CodedTokensAt(tokens) - 8) % 64, 0);
  }
  EXPECT_EQ(tail.block_count, tail.BlocksAt(1011));
  EXPECT_EQ(tail.bytes, tail.block_begin(tail.block_count));
}

TEST(ShadowKvLayoutTest, ALargeLocalWindowStaysExact) {
  ShadowKvConfig config = kTiny;
  config.local_chunks = 50;  // 100 tokens
  const ShadowKvPromptLayout prompt(config, 301);
  EXPECT_EQ(prompt.local_tokens, 101);
  const ShadowKvTailLayout tail(prompt, 500);
  EXPECT_EQ(tail.exact_limit, 192);
  for (int64_t tokens = 301; tokens <= 801; ++tokens) {
    EXPECT_GE(tokens - tail.CodedTokensAt(tokens), 100);
  }
}

TEST(ShadowKvLayoutTest, ATailGrowsBehindItsBytes) {
  for (const ShadowKvGenerated generated :
       {ShadowKvGenerated::kBlocks, ShadowKvGenerated::kExact}) {
    ShadowKvConfig config = kTiny;
    config.generated = generated;
    const ShadowKvPromptLayout prompt(config, 50);
    const ShadowKvTailLayout small(prompt, 200);
    const ShadowKvTailLayout large(prompt, 400);
    EXPECT_LT(small.bytes, large.bytes);
    for (int64_t position = 50; position < 250; ++position) {
      EXPECT_EQ(small.exact_key(position, 1), large.exact_key(position, 1));
    }
    if (generated == ShadowKvGenerated::kBlocks) {
      EXPECT_EQ(small.block_begin(1), large.block_begin(1));
    } else {
      EXPECT_EQ(large.BlocksAt(450), 0);
    }
  }
}

TEST(ShadowKvLayoutTest, SelectsTheBudgetOrWhatThereIs) {
  const ShadowKvPromptLayout prompt(kTiny, 11);  // 4 coded chunks, 2 of them static
  EXPECT_EQ(ShadowKvSelectedChunks(prompt, 11), 2);
  ShadowKvConfig config = kTiny;
  config.budget_tokens = 41;
  const ShadowKvPromptLayout larger(config, 11);
  EXPECT_EQ(ShadowKvSelectedChunks(larger, 11), 2);
  EXPECT_EQ(ShadowKvSelectedChunks(larger, 8 + 128), 21);  // 20.5 chunks, rounded
}

// The table as a list: slot per id.
struct Table {
  std::vector<int32_t> ids = std::vector<int32_t>(4);
  std::vector<int32_t> slots = std::vector<int32_t>(4);
  std::vector<int32_t> plan = std::vector<int32_t>(4);

  int64_t Plan(const std::vector<int32_t>& selected) {
    std::vector<int32_t> scratch(4);
    return ShadowKvPlanCache({.ids = ids.data(), .slots = slots.data(), .count = 4},
                             selected.data(),
                             static_cast<int64_t>(selected.size()),
                             plan.data(),
                             scratch.data());
  }
};

TEST(ShadowKvPlanCacheTest, HitsKeepTheirSlotsAndMissesTakeFreedOnes) {
  Table table;
  EXPECT_EQ(table.Plan({2, 5}), 0);
  EXPECT_EQ(table.plan[0], ~0);
  EXPECT_EQ(table.plan[1], ~1);
  EXPECT_EQ(table.Plan({1, 5, 6, 9}), 1);
  EXPECT_EQ(table.plan[1], 1);
  EXPECT_EQ(table.Plan({1, 5, 6, 9}), 4);
  EXPECT_EQ(table.Plan({0, 6}), 1);
  EXPECT_EQ(table.Plan({}), 0);
  EXPECT_EQ(table.Plan({6}), 0);
}

TEST(ShadowKvPlanCacheTest, SlotsStayAPermutation) {
  Table table;
  uint32_t state = 1;
  for (int step = 0; step < 200; ++step) {
    std::vector<int32_t> selected;
    for (int32_t id = 0; id < 9 && selected.size() < 4; ++id) {
      state = state * 1664525u + 1013904223u;
      if (state >> 31 != 0) {
        selected.push_back(id);
      }
    }
    table.Plan(selected);
    std::vector<int32_t> slots = table.slots;
    std::sort(slots.begin(), slots.end());
    EXPECT_EQ(slots, (std::vector<int32_t>{0, 1, 2, 3}));
    for (size_t i = 0; i < selected.size(); ++i) {
      EXPECT_EQ(table.ids[i], selected[i] + 1);
      EXPECT_EQ(table.slots[i], table.plan[i] < 0 ? ~table.plan[i] : table.plan[i]);
    }
  }
}

}  // namespace
}  // namespace baton::kernels
