#include "kernels/core/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "gtest/gtest.h"

#include "kernels/core/buffer.h"
#include "kernels/core/memory.h"
#include "kernels/core/shared_blocks.h"

namespace baton::kernels {
namespace {

std::span<const std::byte> All(const Memory& memory) { return {memory.data(), memory.size()}; }

TEST(SharedMemoryTest, BlocksAreZeroedAlignedAndWritable) {
  const Memory memory = *SharedHostMemory().Allocate(100'000);
  EXPECT_EQ(memory.size(), 100'000U);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(memory.data()) % 64, 0U);
  for (size_t i = 0; i < memory.size(); ++i) {
    ASSERT_EQ(memory.data()[i], std::byte{0}) << i;
  }
  std::memset(memory.data(), 5, memory.size());
}

TEST(SharedMemoryTest, WhatItAdoptsIsThere) {
  Buffer source(300);
  std::memset(source.data(), 3, source.size());
  const Memory memory = *SharedHostMemory().Adopt(std::move(source));
  ASSERT_EQ(memory.size(), 300U);
  EXPECT_EQ(memory.data()[299], std::byte{3});
}

TEST(SharedMemoryTest, NothingTakesNothing) {
  EXPECT_EQ(SharedHostMemory().Allocate(0)->size(), 0U);
}

TEST(SharedMemoryTest, MoreThanThereIsIsExhausted) {
  EXPECT_EQ(SharedHostMemory().Allocate(size_t{1} << 62).status().code(),
            absl::StatusCode::kResourceExhausted);
}

TEST(SharedMemoryTest, BytesAreFoundInTheirBlockAndNowhereElse) {
  const Memory first = *SharedHostMemory().Allocate(8192);
  const Memory second = *SharedHostMemory().Allocate(8192);
  const std::optional<SharedLocation> inside = FindShared(All(first).subspan(100, 50));
  ASSERT_TRUE(inside.has_value());
  EXPECT_EQ(inside->offset, 100U);
  EXPECT_EQ(inside->block->size(), 8192U);
  EXPECT_NE(inside->block->id(), FindShared(All(second))->block->id());
  EXPECT_FALSE(FindShared({first.data() + 8000, 193}).has_value());
  EXPECT_FALSE(FindShared({first.data() + 8192, 1}).has_value() &&
               first.data() + 8192 != second.data());
  const std::byte elsewhere{};
  EXPECT_FALSE(FindShared({&elsewhere, 1}).has_value());
}

TEST(SharedMemoryTest, BlocksAreListedByKind) {
  const Memory first = *SharedHostMemory().Allocate(4096);
  const Memory second = *SharedHostMemory().Allocate(4096);
  const auto blocks = SharedBlocks(BlockKind::kHost);
  ASSERT_EQ(blocks.size(), 2U);
  EXPECT_EQ(blocks[0]->id(), FindShared(All(first))->block->id());
  EXPECT_EQ(blocks[1]->id(), FindShared(All(second))->block->id());
  for (const auto& block : SharedBlocks(BlockKind::kDevice)) {
    EXPECT_EQ(block->kind(), BlockKind::kDevice);
  }
}

TEST(SharedMemoryTest, ABlockThatIsGivenBackIsNotFound) {
  const std::byte* was = nullptr;
  uint32_t id = 0;
  {
    const Memory memory = *SharedHostMemory().Allocate(4096);
    was = memory.data();
    id = FindShared(All(memory))->block->id();
  }
  EXPECT_FALSE(FindShared({was, 1}).has_value());
  const Memory next = *SharedHostMemory().Allocate(4096);
  EXPECT_NE(FindShared(All(next))->block->id(), id);
}

TEST(SharedMemoryTest, AMappingShowsWhatIsWrittenBeforeAndAfter) {
  const Memory memory = *SharedHostMemory().Allocate(8192);
  std::memset(memory.data(), 1, 4096);
  const auto block = FindShared(All(memory))->block;
  const auto mapping = MapShared(block->fd(), block->size());
  ASSERT_TRUE(mapping.ok()) << mapping.status();
  ASSERT_EQ((*mapping)->bytes().size(), 8192U);
  std::memset(memory.data() + 4096, 2, 4096);
  EXPECT_EQ((*mapping)->bytes()[0], std::byte{1});
  EXPECT_EQ((*mapping)->bytes()[8191], std::byte{2});
}

TEST(SharedMemoryTest, AMappingOutlivesItsBlock) {
  std::unique_ptr<SharedMapping> mapping;
  {
    const Memory memory = *SharedHostMemory().Allocate(4096);
    std::memset(memory.data(), 9, 4096);
    const auto block = FindShared(All(memory))->block;
    mapping = *MapShared(block->fd(), block->size());
  }
  EXPECT_EQ(mapping->bytes()[4095], std::byte{9});
}

// Who maps it must not meet its end, nor write to it.
TEST(SharedMemoryTest, WhoHasTheDescriptorCanNeitherShrinkNorWrite) {
  const Memory memory = *SharedHostMemory().Allocate(4096);
  const int fd = FindShared(All(memory))->block->fd();
  EXPECT_NE(ftruncate(fd, 0), 0);
  EXPECT_EQ(mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), MAP_FAILED);
  EXPECT_NE(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE), 0);
}

TEST(SharedMemoryTest, OnlySealedFilesOfTheSizeAreMapped) {
  const int unsealed = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  ASSERT_EQ(ftruncate(unsealed, 4096), 0);
  EXPECT_EQ(MapShared(unsealed, 4096).status().code(), absl::StatusCode::kInvalidArgument);
  ASSERT_EQ(fcntl(unsealed, F_ADD_SEALS, F_SEAL_SHRINK), 0);
  EXPECT_TRUE(MapShared(unsealed, 4096).ok());
  EXPECT_EQ(MapShared(unsealed, 4097).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(MapShared(unsealed, 0).status().code(), absl::StatusCode::kInvalidArgument);
  close(unsealed);
  EXPECT_EQ(MapShared(-1, 4096).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace baton::kernels
