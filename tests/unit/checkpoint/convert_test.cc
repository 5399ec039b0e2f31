#include "common/checkpoint/convert.h"

#include <cstring>
#include <vector>

#include "gtest/gtest.h"

#include "kernels/core/half.h"

namespace baton::checkpoint {
namespace {

using kernels::DType;

template <typename T>
TensorView View(const std::vector<T>& values, DType dtype) {
  return {dtype, {static_cast<int64_t>(values.size())}, std::as_bytes(std::span(values))};
}

template <typename T>
std::vector<T> Convert(const TensorView& source, DType dtype) {
  std::vector<T> target(static_cast<size_t>(source.num_elements()));
  EXPECT_TRUE(ConvertTensor(source, dtype, std::as_writable_bytes(std::span(target))).ok());
  return target;
}

TEST(ConvertTest, WideningIsExact) {
  const std::vector<uint16_t> bf16 = {0x3f80, 0xc000, 0x0001};
  EXPECT_EQ(Convert<float>(View(bf16, DType::kBF16), DType::kF32),
            (std::vector<float>{1.0f, -2.0f, kernels::BF16ToF32(1)}));
  const std::vector<uint16_t> f16 = {0x3c00, 0xc000, 0x0001};
  EXPECT_EQ(Convert<float>(View(f16, DType::kF16), DType::kF32),
            (std::vector<float>{1.0f, -2.0f, 0x1p-24f}));
}

TEST(ConvertTest, Bf16TargetRoundsToNearestEven) {
  const std::vector<float> f32 = {1.0f, 1.0f + 0x1p-8f, 1.0f + 3 * 0x1p-8f};
  EXPECT_EQ(Convert<uint16_t>(View(f32, DType::kF32), DType::kBF16),
            (std::vector<uint16_t>{0x3f80, 0x3f80, 0x3f82}));
  const std::vector<uint16_t> f16 = {0x3c04};  // 1 + 2^-8
  EXPECT_EQ(Convert<uint16_t>(View(f16, DType::kF16), DType::kBF16),
            (std::vector<uint16_t>{0x3f80}));
}

TEST(ConvertTest, UnalignedBytesAreRead) {
  std::vector<std::byte> storage(1 + 2 * sizeof(float));
  const float values[2] = {3.0f, -4.0f};
  std::memcpy(storage.data() + 1, values, sizeof(values));
  const TensorView view = {DType::kF32, {2}, std::span<const std::byte>(storage).subspan(1)};
  EXPECT_EQ(Convert<float>(view, DType::kF32), (std::vector<float>{3.0f, -4.0f}));
}

TEST(ConvertTest, OtherTypesAreRefused) {
  const std::vector<int32_t> integers = {1};
  float target = 0;
  EXPECT_FALSE(ConvertTensor(View(integers, DType::kI32),
                             DType::kF32,
                             std::as_writable_bytes(std::span(&target, 1)))
                   .ok());
  const std::vector<float> floats = {1};
  EXPECT_FALSE(ConvertTensor(View(floats, DType::kF32),
                             DType::kI32,
                             std::as_writable_bytes(std::span(&target, 1)))
                   .ok());
}

}  // namespace
}  // namespace baton::checkpoint
