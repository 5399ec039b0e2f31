#include "common/kv/pool/page_pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <span>
#include <utility>
#include <vector>

namespace baton::kv {
namespace {

std::unique_ptr<PagePool> MakePool(int64_t pages, size_t stride = 64) {
  auto pool = PagePool::Create(pages * static_cast<int64_t>(stride), stride);
  EXPECT_TRUE(pool.ok()) << pool.status();
  return *std::move(pool);
}

TEST(PagePoolTest, HoldsAsManyPagesAsFit) {
  const auto pool = PagePool::Create(1000, 128);
  ASSERT_TRUE(pool.ok());
  EXPECT_EQ((*pool)->pages_total(), 7);
  EXPECT_EQ((*pool)->pages_free(), 7);
}

TEST(PagePoolTest, RefusesSizesThatMakeNoPool) {
  for (const auto& [bytes, stride] :
       std::map<int64_t, size_t>{{63, 64}, {0, 64}, {-1, 64}, {1000, 0}, {1001, 60}}) {
    EXPECT_EQ(PagePool::Create(bytes, stride).status().code(), absl::StatusCode::kInvalidArgument)
        << bytes << " " << stride;
  }
  EXPECT_EQ(PagePool::Create(int64_t{1} << 61, 1u << 31).status().code(),
            absl::StatusCode::kResourceExhausted);
}

TEST(PagePoolTest, PagesAreDistinctAlignedAndInsideTheArena) {
  const auto pool = MakePool(16, 192);
  const auto ids = pool->Allocate(16);
  ASSERT_TRUE(ids.has_value());
  EXPECT_EQ(std::set<PageId>(ids->begin(), ids->end()).size(), 16u);
  for (const PageId id : *ids) {
    const auto page = pool->page(id);
    EXPECT_EQ(page.size(), 192u);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(page.data()) % 64, 0u);
    EXPECT_EQ(page.data(), pool->base() + static_cast<size_t>(id) * 192);
    std::memset(page.data(), id, page.size());
  }
  for (const PageId id : *ids) {
    EXPECT_EQ(pool->page(id)[191], static_cast<std::byte>(id));
  }
  pool->ReleaseAll(*ids);
}

TEST(PagePoolTest, PiecesJoinPagesThatAreWholeNeighbours) {
  const auto pool = MakePool(16, 192);
  const std::vector<PageId> ids = {3, 4, 5, 2, 9};
  const auto whole = pool->Pieces(ids, 192);
  ASSERT_EQ(whole.size(), 3u);
  EXPECT_EQ(whole[0].data(), pool->page(3).data());
  EXPECT_EQ(whole[0].size(), 3u * 192);
  EXPECT_EQ(whole[1].data(), pool->page(2).data());
  EXPECT_EQ(whole[2].size(), 192u);
  const auto parts = pool->Pieces(ids, 100);
  ASSERT_EQ(parts.size(), 5u);
  EXPECT_EQ(parts[1].data(), pool->page(4).data());
  EXPECT_EQ(parts[1].size(), 100u);
}

TEST(PagePoolTest, AllocationIsAllOrNothing) {
  const auto pool = MakePool(4);
  const auto three = pool->Allocate(3);
  ASSERT_TRUE(three.has_value());
  EXPECT_FALSE(pool->Allocate(2).has_value());
  EXPECT_EQ(pool->pages_free(), 1);
  EXPECT_EQ(pool->stats().refusals, 1);
  EXPECT_TRUE(pool->Allocate(0)->empty());
  const auto one = pool->Allocate(1);
  ASSERT_TRUE(one.has_value());
  pool->ReleaseAll(*one);
  pool->ReleaseAll(*three);
  EXPECT_EQ(pool->pages_free(), 4);
}

TEST(PagePoolTest, APageIsFreeWithItsLastReference) {
  const auto pool = MakePool(1);
  const PageId id = pool->Allocate(1)->front();
  pool->AddReference(id);
  pool->Release(id);
  EXPECT_EQ(pool->references(id), 1);
  EXPECT_EQ(pool->pages_free(), 0);
  pool->Release(id);
  EXPECT_EQ(pool->references(id), 0);
  EXPECT_EQ(pool->pages_free(), 1);
}

TEST(PagePoolDeathTest, DoubleReleaseIsABrokenInvariant) {
  const auto pool = MakePool(2);
  const PageId id = pool->Allocate(1)->front();
  pool->Release(id);
  EXPECT_DEATH(pool->Release(id), "broken invariant");
  EXPECT_DEATH(pool->AddReference(id), "broken invariant");
  EXPECT_DEATH(pool->Release(kNoPage), "broken invariant");
  EXPECT_DEATH(pool->Release(2), "broken invariant");
  EXPECT_DEATH(pool->Allocate(-1), "broken invariant");
}

TEST(PagePoolTest, RandomOperationsAgreeWithAModel) {
  const uint32_t seed = 77;
  SCOPED_TRACE(testing::Message() << "seed " << seed
                                  << "; repeat with --gtest_filter=*RandomOper*");
  std::mt19937 random(seed);
  constexpr int64_t kPages = 64;
  const auto pool = MakePool(kPages);
  std::map<PageId, int> model;     // page -> references
  std::vector<PageId> references;  // one entry per reference
  for (int i = 0; i < 50000; ++i) {
    const uint32_t kind = random() % 4;
    if (kind == 0) {
      const int64_t count = static_cast<int64_t>(random() % 12);
      const auto ids = pool->Allocate(count);
      ASSERT_EQ(ids.has_value(), count <= kPages - static_cast<int64_t>(model.size()));
      for (const PageId id : ids.value_or(std::vector<PageId>{})) {
        ASSERT_TRUE(model.emplace(id, 1).second) << "page " << id << " was handed out twice";
        references.push_back(id);
      }
    } else if (!references.empty()) {
      const size_t at = random() % references.size();
      const PageId id = references[at];
      if (kind == 1) {
        pool->AddReference(id);
        ++model[id];
        references.push_back(id);
      } else {
        pool->Release(id);
        references[at] = references.back();
        references.pop_back();
        if (--model[id] == 0) {
          model.erase(id);
        }
      }
      ASSERT_EQ(pool->references(id), model.contains(id) ? model[id] : 0);
    }
    ASSERT_EQ(pool->pages_free(), kPages - static_cast<int64_t>(model.size()));
  }
  pool->ReleaseAll(references);
  EXPECT_EQ(pool->pages_free(), kPages);
  EXPECT_EQ(pool->Allocate(kPages)->size(), static_cast<size_t>(kPages));
}

// Sequences of `layers` that take pages for each, give a part of each back at once and the rest
// when the pool is full, one of the oldest four first: what reservations of encoded prompts do.
// Returns how many pages in a row a layer keeps, on average over the last tenth of `sequences`.
double PagesInARow(PagePool& pool, int32_t layers, int sequences, std::mt19937& random) {
  std::deque<std::vector<PageId>> live;
  int64_t pages = 0;
  int64_t runs = 0;
  for (int sequence = 0; sequence < sequences; ++sequence) {
    const auto per_layer = static_cast<int64_t>(100 + random() % 900);
    auto taken = pool.Allocate(layers * per_layer);
    for (; !taken.has_value(); taken = pool.Allocate(layers * per_layer)) {
      const auto victim =
          live.begin() + static_cast<ptrdiff_t>(random() % std::min<size_t>(live.size(), 4));
      pool.ReleaseAll(*victim);
      live.erase(victim);
    }
    std::vector<PageId> kept;
    for (int32_t layer = 0; layer < layers; ++layer) {
      const std::span<const PageId> ids = std::span(*taken).subspan(
          static_cast<size_t>(layer * per_layer), static_cast<size_t>(per_layer));
      const auto used =
          static_cast<size_t>(per_layer * static_cast<int64_t>(35 + random() % 35) / 100);
      pool.ReleaseAll(ids.subspan(used));
      kept.insert(kept.end(), ids.begin(), ids.begin() + static_cast<ptrdiff_t>(used));
      if (sequence >= sequences * 9 / 10) {
        pages += static_cast<int64_t>(used);
        for (size_t i = 0; i < used; ++i) {
          runs += i == 0 || ids[i] != ids[i - 1] + 1 ? 1 : 0;
        }
      }
    }
    live.push_back(std::move(kept));
  }
  for (const std::vector<PageId>& ids : live) {
    pool.ReleaseAll(ids);
  }
  return static_cast<double>(pages) / static_cast<double>(runs);
}

TEST(PagePoolTest, PagesOfALayerStayInLongRunsHoweverManySequencesCameAndWent) {
  const uint32_t seed = 7;
  SCOPED_TRACE(testing::Message() << "seed " << seed << "; repeat with --gtest_filter=*LongRuns*");
  std::mt19937 random(seed);
  const auto pool = MakePool(1 << 17);
  EXPECT_GT(PagesInARow(*pool, /*layers=*/8, /*sequences=*/20000, random), 8);
  EXPECT_EQ(pool->pages_free(), pool->pages_total());
}

}  // namespace
}  // namespace baton::kv
