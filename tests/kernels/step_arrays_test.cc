#include "kernels/core/step_arrays.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"

#include "kernels/core/memory.h"
#include "tests/kernels/device_double/guarded_memory.h"

namespace baton::kernels {
namespace {

std::vector<int32_t> Count(size_t size, int32_t first) {
  std::vector<int32_t> values(size);
  std::iota(values.begin(), values.end(), first);
  return values;
}

std::vector<int32_t> Read(const int32_t* source, size_t size) {
  std::vector<int32_t> values(size);
  EXPECT_TRUE(GuardedMemory::Get().Download(values.data(), source, size * sizeof(int32_t)).ok());
  return values;
}

TEST(StepArraysTest, OnTheHostArraysStayWhereTheyAre) {
  StepArrays arrays(HostMemory());
  const std::vector<int32_t> values = Count(5, 1);
  EXPECT_EQ(arrays.Add(values), values.data());
  EXPECT_TRUE(arrays.Upload().ok());
}

TEST(StepArraysTest, OnADeviceOneCopyBringsAllArrays) {
  StepArrays arrays(GuardedMemory::Get());
  const std::vector<int32_t> first = Count(5, 1);
  const std::vector<int32_t> second = Count(300, 100);
  const int32_t* on_device = arrays.Add(first);
  const int32_t* behind = arrays.Add(second);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(behind) % 64, 0);
  const int64_t uploads = GuardedMemory::Get().uploads();
  ASSERT_TRUE(arrays.Upload().ok());
  EXPECT_EQ(GuardedMemory::Get().uploads(), uploads + 1);
  EXPECT_EQ(Read(on_device, first.size()), first);
  EXPECT_EQ(Read(behind, second.size()), second);
}

// An element of an array of structures that points to another array.
struct Pointer {
  const int32_t* address = nullptr;

  bool operator==(const Pointer&) const = default;
};

TEST(StepArraysTest, AddressesAreKnownBeforeTheUploadAndStayWhileMoreComes) {
  StepArrays arrays(GuardedMemory::Get());
  const std::vector<int32_t> values = Count(10'000, 0);
  std::vector<Pointer> pointers;
  pointers.reserve(20);
  for (int i = 0; i < 20; ++i) {
    pointers.push_back({arrays.Add(values)});
  }
  const Pointer* on_device = arrays.Add(pointers);
  ASSERT_TRUE(arrays.Upload().ok());
  std::vector<Pointer> read(pointers.size());
  ASSERT_TRUE(
      GuardedMemory::Get().Download(read.data(), on_device, read.size() * sizeof(Pointer)).ok());
  EXPECT_EQ(read, pointers);
  for (const Pointer& pointer : pointers) {
    EXPECT_EQ(Read(pointer.address, values.size()), values);
  }
}

TEST(StepArraysTest, AStepThatNeededMuchMakesRoomForTheNextInOneBlock) {
  StepArrays arrays(GuardedMemory::Get());
  const std::vector<int32_t> values = Count(10'000, 0);
  for (int step = 0; step < 3; ++step) {
    arrays.Clear();
    for (int i = 0; i < 20; ++i) {
      arrays.Add(values);
    }
    const int64_t uploads = GuardedMemory::Get().uploads();
    ASSERT_TRUE(arrays.Upload().ok());
    EXPECT_EQ(GuardedMemory::Get().uploads() - uploads > 1, step == 0) << "step " << step;
  }
}

TEST(StepArraysTest, NothingAddedIsNothingCopied) {
  StepArrays arrays(GuardedMemory::Get());
  EXPECT_EQ(arrays.Add(std::span<const int32_t>()), nullptr);
  const int64_t uploads = GuardedMemory::Get().uploads();
  EXPECT_TRUE(arrays.Upload().ok());
  EXPECT_EQ(GuardedMemory::Get().uploads(), uploads);
}

TEST(StepArraysTest, MissingMemoryIsToldByUploadAndForgottenByTheNextStep) {
  StepArrays arrays(GuardedMemory::Get());
  const std::vector<int32_t> values = Count(3, 7);
  GuardedMemory::Get().FailNext();
  EXPECT_EQ(arrays.Add(values), nullptr);
  EXPECT_EQ(arrays.Upload().code(), absl::StatusCode::kResourceExhausted);
  arrays.Clear();
  const int32_t* on_device = arrays.Add(values);
  ASSERT_TRUE(arrays.Upload().ok());
  EXPECT_EQ(Read(on_device, values.size()), values);
}

TEST(HostMemoryTest, BlocksAreZeroedAlignedAndMoved) {
  absl::StatusOr<Memory> block = HostMemory().Allocate(1000);
  ASSERT_TRUE(block.ok());
  EXPECT_EQ(reinterpret_cast<uintptr_t>(block->data()) % 64, 0);
  for (size_t i = 0; i < block->size(); ++i) {
    ASSERT_EQ(block->data()[i], std::byte{0});
  }
  std::byte* const data = block->data();
  const Memory moved = *std::move(block);
  EXPECT_EQ(moved.data(), data);
  EXPECT_EQ(moved.size(), 1000);
  EXPECT_EQ(HostMemory().Allocate(SIZE_MAX).status().code(), absl::StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace baton::kernels
