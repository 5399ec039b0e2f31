#include "common/engine/page_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <set>

#include "common/kv/codec/dense_format.h"

namespace baton::engine {
namespace {

std::unique_ptr<kv::DenseFormat> Format() {
  return *kv::DenseFormat::Create({.layers = 3, .kv_heads = 1, .head_dim = 8},
                                  {.page_tokens = 4, .dtype = kernels::DType::kF32});
}

std::unique_ptr<kv::PagePool> Pool(int64_t pages) {
  const auto stride = static_cast<int64_t>(Format()->stride_bytes());
  return *kv::PagePool::Create(pages * stride, static_cast<size_t>(stride));
}

TEST(PagePlanTest, PrefillNeedsThePromptOnly) {
  const PagePlan plan = PlanPages(*Format(), 10, 5, 100, /*generates=*/false);
  EXPECT_EQ(plan.total, 3);
  EXPECT_EQ(plan.sequences, 1);
  EXPECT_EQ(plan.pages(), 9);
}

TEST(PagePlanTest, SequencesShareWholePromptPages) {
  const PagePlan partly = PlanPages(*Format(), 10, 3, 6, /*generates=*/true);
  EXPECT_EQ(partly.shared, 2);
  EXPECT_EQ(partly.prompt, 3);
  EXPECT_EQ(partly.total, 4);
  EXPECT_TRUE(partly.copies_last_prompt_page());
  EXPECT_EQ(partly.pages(), 3 * (4 + 2 * 2));
  const PagePlan whole = PlanPages(*Format(), 8, 3, 6, /*generates=*/true);
  EXPECT_FALSE(whole.copies_last_prompt_page());
  EXPECT_EQ(whole.pages(), 3 * (4 + 2 * 2));
}

TEST(PagePlanTest, AllocationSharesPagesByReferenceAndReturnsAll) {
  const auto pool = Pool(24);
  const PagePlan plan = PlanPages(*Format(), 10, 3, 6, /*generates=*/true);
  ActiveRequest request;
  ASSERT_TRUE(AllocateSequences(plan, *pool, request));
  EXPECT_EQ(pool->pages_free(), 0);
  ASSERT_EQ(request.sequences.size(), 3u);
  std::set<kv::PageId> distinct;
  for (const Sequence& sequence : request.sequences) {
    for (int32_t table = 0; table < 3; ++table) {
      for (int32_t page = 0; page < 4; ++page) {
        const kv::PageId id = sequence.pages.at(table, page);
        distinct.insert(id);
        EXPECT_EQ(pool->references(id), page < 2 ? 3 : 1);
        if (page < 2) {
          EXPECT_EQ(id, request.sequences[0].pages.at(table, page));
        }
      }
    }
  }
  EXPECT_EQ(distinct.size(), 24u);
  ReleaseSequences(*pool, request);
  EXPECT_EQ(pool->pages_free(), 24);
}

TEST(PagePlanTest, PagesOfALayerLieOneBehindTheOther) {
  const auto pool = Pool(36);
  for (int round = 0; round < 4; ++round) {  // of which the last is at the pool's end
    ActiveRequest request;
    ASSERT_TRUE(AllocateSequences(PlanPages(*Format(), 10, 1, 2, true), *pool, request));
    const kv::PageTable& pages = request.sequences[0].pages;
    for (int32_t table = 0; table < 3; ++table) {
      EXPECT_EQ(pages.at(table, 1), pages.at(table, 0) + 1) << "round " << round;
      EXPECT_EQ(pages.at(table, 2), pages.at(table, 0) + 2) << "round " << round;
    }
    ReleaseSequences(*pool, request);
  }
}

TEST(PagePlanTest, TooFewPagesAllocateNothing) {
  const auto pool = Pool(23);
  ActiveRequest request;
  EXPECT_FALSE(AllocateSequences(PlanPages(*Format(), 10, 3, 6, true), *pool, request));
  EXPECT_EQ(pool->pages_free(), 23);
  EXPECT_TRUE(request.sequences.empty());
}

}  // namespace
}  // namespace baton::engine
