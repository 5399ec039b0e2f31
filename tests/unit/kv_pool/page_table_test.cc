#include "common/kv/pool/page_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <utility>

#include "common/kv/pool/page_pool.h"

namespace baton::kv {
namespace {

using ::testing::ElementsAre;

std::unique_ptr<PagePool> MakePool(int64_t pages) { return *PagePool::Create(pages * 64, 64); }

TEST(PageTableTest, LaysTablesOutWithAStride) {
  const auto pool = MakePool(6);
  const auto ids = *pool->Allocate(4);
  PageTable table(2, 3);
  table.Set(0, 0, ids[0]);
  table.Set(0, 1, ids[1]);
  table.Set(1, 0, ids[2]);
  table.Set(1, 2, ids[3]);
  EXPECT_THAT(table.table(0), ElementsAre(ids[0], ids[1], kNoPage));
  EXPECT_THAT(table.table(1), ElementsAre(ids[2], kNoPage, ids[3]));
  EXPECT_EQ(table.data()[1 * table.stride() + 2], ids[3]);
  EXPECT_EQ(table.pages(), 4);
  table.ReleaseAll(*pool);
  EXPECT_EQ(table.pages(), 0);
  EXPECT_EQ(pool->pages_free(), 6);
}

TEST(PageTableTest, LargerTablesKeepTheirPagesAndHaveRoomBehindThem) {
  const auto pool = MakePool(5);
  const auto ids = *pool->Allocate(5);
  PageTable table(2, 2);
  for (int i = 0; i < 4; ++i) {
    table.Set(i / 2, i % 2, ids[static_cast<size_t>(i)]);
  }
  table.Resize(3, *pool);
  EXPECT_THAT(table.table(0), ElementsAre(ids[0], ids[1], kNoPage));
  EXPECT_THAT(table.table(1), ElementsAre(ids[2], ids[3], kNoPage));
  table.Set(1, 2, ids[4]);
  EXPECT_EQ(table.pages(), 5);
  table.ReleaseAll(*pool);
}

TEST(PageTableTest, SmallerTablesGiveBackTheirEnds) {
  const auto pool = MakePool(6);
  const auto ids = *pool->Allocate(6);
  PageTable table(2, 3);
  for (int i = 0; i < 6; ++i) {
    table.Set(i / 3, i % 3, ids[static_cast<size_t>(i)]);
  }
  table.Resize(1, *pool);
  EXPECT_THAT(table.table(0), ElementsAre(ids[0]));
  EXPECT_THAT(table.table(1), ElementsAre(ids[3]));
  EXPECT_EQ(table.pages(), 2);
  EXPECT_EQ(pool->pages_free(), 4);
  table.ReleaseAll(*pool);
  EXPECT_EQ(pool->pages_free(), 6);
}

TEST(PageTableTest, SharedPagesStayUntilEveryTableLetGo) {
  const auto pool = MakePool(1);
  const PageId id = pool->Allocate(1)->front();
  PageTable first(1, 1);
  PageTable second(1, 1);
  first.Set(0, 0, id);
  pool->AddReference(id);
  second.Set(0, 0, id);
  first.ReleaseAll(*pool);
  EXPECT_EQ(pool->pages_free(), 0);
  second.ReleaseAll(*pool);
  EXPECT_EQ(pool->pages_free(), 1);
}

TEST(PageTableTest, MovingLeavesNothingBehind) {
  const auto pool = MakePool(1);
  PageTable first(1, 1);
  first.Set(0, 0, pool->Allocate(1)->front());
  PageTable second(std::move(first));
  EXPECT_EQ(second.pages(), 1);
  first = PageTable(2, 2);
  first.ReleaseAll(*pool);
  EXPECT_EQ(pool->pages_free(), 0);
  second.ReleaseAll(*pool);
  EXPECT_EQ(pool->pages_free(), 1);
}

TEST(PageTableDeathTest, LeaksAndOverwritesAreBrokenInvariants) {
  const auto pool = MakePool(2);
  const auto ids = *pool->Allocate(2);
  EXPECT_DEATH(
      {
        PageTable table(1, 1);
        table.Set(0, 0, ids[0]);
      },
      "broken invariant");
  PageTable table(1, 1);
  table.Set(0, 0, ids[0]);
  EXPECT_DEATH(table.Set(0, 0, ids[1]), "broken invariant");
  EXPECT_DEATH(table.Set(0, 1, ids[1]), "broken invariant");
  table.ReleaseAll(*pool);
}

}  // namespace
}  // namespace baton::kv
