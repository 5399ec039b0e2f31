// Memory of the device that other processes may map, and sums of what lies in it.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"

#include "kernels/core/memory.h"
#include "kernels/core/shared_blocks.h"
#include "kernels/core/word_sum.h"
#include "kernels/cuda/runtime/device_space.h"
#include "kernels/cuda/runtime/landing_stream.h"
#include "tests/gpu/support/gpu_test.h"
#include "tests/kernels/support/backends.h"

namespace baton::kernels::cuda {
namespace {

constexpr size_t kBytes = (size_t{5} << 20) + 8;

class ExportedMemoryGpuTest : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped()) {
      return;
    }
    auto landing = LandingStream::Create();
    ASSERT_TRUE(landing.ok()) << landing.status();
    landing_ = *std::move(landing);
    space_.emplace(queue(), nullptr, landing_.get());
  }
  static std::vector<std::byte> RandomBytes(size_t size) {
    std::mt19937_64 random(TestSeed());
    std::vector<std::byte> bytes(size);
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
    return bytes;
  }

  std::unique_ptr<LandingStream> landing_;
  std::optional<ExportedSpace> space_;
};

TEST_F(ExportedMemoryGpuTest, WhoHasTheDescriptorReadsTheSameBytes) {
  const std::vector<std::byte> bytes = RandomBytes(kBytes);
  const auto source = space_->Allocate(kBytes);
  ASSERT_TRUE(source.ok()) << source.status();
  const auto location = FindShared({source->data() + 100, kBytes - 100});
  ASSERT_TRUE(location.has_value());
  EXPECT_EQ(location->block->kind(), BlockKind::kDevice);
  EXPECT_EQ(location->offset, 100U);
  const auto mapping = landing_->Import(location->block->fd(), location->block->size());
  ASSERT_TRUE(mapping.ok()) << mapping.status();
  std::vector<std::byte> back(kBytes);
  ASSERT_TRUE(landing_->Read(back, (*mapping)->bytes().data()).ok());
  EXPECT_EQ(back, std::vector<std::byte>(kBytes));  // zeroed
  ASSERT_TRUE(landing_->Write(source->data(), bytes).ok());
  const auto target = DeviceSpace(queue()).Allocate(kBytes);
  ASSERT_TRUE(target.ok()) << target.status();
  ASSERT_TRUE(landing_->Pull(target->data(), (*mapping)->bytes().first(kBytes)).ok());
  ASSERT_TRUE(landing_->Wait().ok());
  ASSERT_TRUE(landing_->Read(back, target->data()).ok());
  EXPECT_EQ(back, bytes);
}

TEST_F(ExportedMemoryGpuTest, AMappingOutlivesItsBlock) {
  const std::vector<std::byte> bytes = RandomBytes(kBytes);
  std::unique_ptr<SharedMapping> mapping;
  {
    const auto source = space_->Allocate(kBytes);
    ASSERT_TRUE(source.ok()) << source.status();
    ASSERT_TRUE(landing_->Write(source->data(), bytes).ok());
    ASSERT_TRUE(landing_->Wait().ok());
    const auto block = FindShared({source->data(), kBytes})->block;
    auto mapped = landing_->Import(block->fd(), block->size());
    ASSERT_TRUE(mapped.ok()) << mapped.status();
    mapping = *std::move(mapped);
  }
  std::vector<std::byte> back(kBytes);
  ASSERT_TRUE(landing_->Read(back, mapping->bytes().data()).ok());
  EXPECT_EQ(back, bytes);
}

TEST_F(ExportedMemoryGpuTest, WhatIsNoBlockIsRefusedAndTheDeviceGoesOn) {
  EXPECT_EQ(landing_->Import(/*fd=*/0, kBytes).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(space_->Allocate(size_t{1} << 50).status().code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(space_->Allocate(kBytes).ok());
}

TEST_F(ExportedMemoryGpuTest, SumsAreThoseOfTheHost) {
  // More parts than a launch has, long ones, and none.
  const size_t size = size_t{4} << 20;
  const std::vector<std::byte> bytes = RandomBytes(size);
  const auto memory = DeviceSpace(queue()).Allocate(size);
  ASSERT_TRUE(memory.ok()) << memory.status();
  ASSERT_TRUE(landing_->Write(memory->data(), bytes).ok());
  for (const size_t piece_bytes : {size_t{8}, size_t{24}, size_t{6656}, size_t{100'000}, size}) {
    std::vector<std::span<const std::byte>> host;
    std::vector<std::span<const std::byte>> device;
    const size_t step = piece_bytes == 8 ? 512 : piece_bytes;
    for (size_t begin = 0; begin + piece_bytes <= size; begin += step) {
      host.push_back(std::span(bytes).subspan(begin, piece_bytes));
      device.emplace_back(memory->data() + begin, piece_bytes);
    }
    const auto sum = landing_->WordSum(device);
    ASSERT_TRUE(sum.ok()) << sum.status();
    EXPECT_EQ(*sum, *AddWords(host)) << piece_bytes << "; " << SeedMessage();
  }
  EXPECT_EQ(*landing_->WordSum({}), 0U);
  const std::span<const std::byte> part(memory->data() + 4, 8);
  EXPECT_EQ(landing_->WordSum(std::span(&part, 1)).status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace baton::kernels::cuda
