#include "common/kv/codec/block_cache.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "tests/kernels/device_double/guarded_memory.h"

namespace baton::kv {
namespace {

using kernels::GuardedMemory;

TEST(BlockCacheTest, ABlockThatCameBackIsHandedOutAgain) {
  BlockCache cache(GuardedMemory::Get());
  std::byte* data = nullptr;
  {
    const absl::StatusOr<BlockCache::Block> block = cache.Take(5000);
    ASSERT_TRUE(block.ok()) << block.status();
    data = block->data();
    const absl::StatusOr<BlockCache::Block> other = cache.Take(5000);
    ASSERT_TRUE(other.ok()) << other.status();
    EXPECT_NE(other->data(), data);
    EXPECT_EQ(GuardedMemory::Get().blocks(), 2);
  }
  const absl::StatusOr<BlockCache::Block> one = cache.Take(8192);
  const absl::StatusOr<BlockCache::Block> two = cache.Take(4097);
  ASSERT_TRUE(one.ok() && two.ok());
  EXPECT_TRUE(one->data() == data || two->data() == data);
  EXPECT_EQ(GuardedMemory::Get().blocks(), 2);
  const absl::StatusOr<BlockCache::Block> larger = cache.Take(8193);
  ASSERT_TRUE(larger.ok());
  EXPECT_EQ(GuardedMemory::Get().blocks(), 3);
}

TEST(BlockCacheTest, ABlockIsAtMostAnEighthLargerThanAskedFor) {
  BlockCache cache(GuardedMemory::Get());
  for (const size_t bytes :
       {size_t{1} << 16, (size_t{1} << 16) + 1, size_t{100000}, size_t{134742016}}) {
    const absl::StatusOr<BlockCache::Block> block = cache.Take(bytes);
    ASSERT_TRUE(block.ok()) << block.status();
    EXPECT_GE(block->size(), bytes);
    EXPECT_LE(block->size(), bytes + bytes / 8);
  }
}

TEST(BlockCacheTest, AFreeBlockServesWhatIsAtLeastHalfAsLarge) {
  BlockCache cache(GuardedMemory::Get());
  std::byte* const data = cache.Take(100000)->data();
  {
    const absl::StatusOr<BlockCache::Block> half = cache.Take(53248);
    ASSERT_TRUE(half.ok()) << half.status();
    EXPECT_EQ(half->data(), data);
    const absl::StatusOr<BlockCache::Block> other = cache.Take(53248);
    ASSERT_TRUE(other.ok()) << other.status();
    EXPECT_NE(other->data(), data);
  }
  const absl::StatusOr<BlockCache::Block> least = cache.Take(53248);
  ASSERT_TRUE(least.ok()) << least.status();
  EXPECT_NE(least->data(), data);  // the one of its size is smaller
  const absl::StatusOr<BlockCache::Block> less = cache.Take(4096);
  ASSERT_TRUE(less.ok()) << less.status();
  EXPECT_NE(less->data(), data);
}

TEST(BlockCacheTest, AMovedBlockIsOwnedOnce) {
  BlockCache cache(GuardedMemory::Get());
  BlockCache::Block first = *cache.Take(100);
  BlockCache::Block second = *cache.Take(100);
  std::byte* const data = second.data();
  first = std::move(second);
  EXPECT_EQ(first.data(), data);
  EXPECT_TRUE(second.empty());  // NOLINT(bugprone-use-after-move)
  EXPECT_EQ(GuardedMemory::Get().blocks(), 2);
}

TEST(BlockCacheTest, FreeBlocksMakeRoomForOneOfAnotherSize) {
  BlockCache cache(GuardedMemory::Get());
  ASSERT_TRUE(cache.Take(100).ok());
  EXPECT_EQ(GuardedMemory::Get().blocks(), 1);
  GuardedMemory::Get().FailNext();
  const absl::StatusOr<BlockCache::Block> block = cache.Take(100000);
  ASSERT_TRUE(block.ok()) << block.status();
  EXPECT_EQ(GuardedMemory::Get().blocks(), 1);
}

TEST(BlockCacheTest, WhatIsFreeIsBounded) {
  BlockCache cache(GuardedMemory::Get());
  {
    std::vector<BlockCache::Block> blocks;
    blocks.reserve(3);
    for (int i = 0; i < 3; ++i) {
      blocks.push_back(*cache.Take(size_t{128} << 20));
    }
  }
  EXPECT_EQ(GuardedMemory::Get().blocks(), 2);
}

TEST(BlockCacheTest, MoreThanThereIsIsAStatus) {
  BlockCache cache(GuardedMemory::Get());
  EXPECT_EQ(cache.Take(size_t{4} << 30).status().code(), absl::StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace baton::kv
