#include "kernels/core/buffer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>

namespace baton::kernels {
namespace {

TEST(BufferTest, IsAlignedAndZeroed) {
  for (const size_t bytes : {size_t{1}, size_t{63}, size_t{64}, size_t{4097}}) {
    const Buffer buffer(bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % Buffer::kAlignment, 0u);
    EXPECT_EQ(buffer.size(), bytes);
    EXPECT_TRUE(std::all_of(buffer.bytes().begin(), buffer.bytes().end(), [](std::byte b) {
      return b == std::byte{0};
    }));
  }
}

TEST(BufferTest, OfNoBytesHoldsNothing) {
  EXPECT_EQ(Buffer(0).data(), nullptr);
  EXPECT_EQ(Buffer().size(), 0u);
}

TEST(BufferTest, MoveHandsTheMemoryOver) {
  Buffer first(8);
  first.as<uint64_t>()[0] = 7;
  const std::byte* memory = first.data();
  const Buffer second = std::move(first);
  EXPECT_EQ(second.data(), memory);
  EXPECT_EQ(second.as<uint64_t>()[0], 7u);
}

TEST(BufferTest, ImpossibleSizeThrowsBadAlloc) {
  EXPECT_THROW(static_cast<void>(Buffer(std::numeric_limits<size_t>::max())), std::bad_alloc);
}

}  // namespace
}  // namespace baton::kernels
