#include "common/checkpoint/read_tensors.h"

#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "common/checkpoint/checkpoint.h"
#include "common/checkpoint/model_config.h"
#include "common/checkpoint/random_checkpoint.h"
#include "common/checkpoint/safetensors_writer.h"
#include "kernels/core/buffer.h"
#include "kernels/core/dtype.h"
#include "kernels/core/thread_pool.h"
#include "tests/unit/checkpoint/small_config.h"
#include "tests/unit/checkpoint/temp_dir.h"

namespace baton::checkpoint {
namespace {

using kernels::Buffer;
using kernels::DType;
using testing::HasSubstr;

// Some parts, and one that ends in the middle.
constexpr int64_t kRows = 1001;
constexpr int64_t kColumns = 900;
constexpr size_t kElements = size_t{kRows} * kColumns;

std::unique_ptr<Checkpoint> OpenFiles(const TempDir& dir) {
  std::vector<float> large(kElements);
  for (size_t i = 0; i < large.size(); ++i) {
    large[i] = 1.0f + 1e-6f * static_cast<float>(i);
  }
  const std::vector<float> small = {7.0f, 8.0f};
  dir.Write("config.json", kSmallConfig);
  const std::vector<NamedTensor> tensors = {
      {"large", {DType::kF32, {kRows, kColumns}, std::as_bytes(std::span(large))}},
      {"small", {DType::kF32, {2}, std::as_bytes(std::span(small))}}};
  EXPECT_TRUE(WriteSafetensors(dir.File("model.safetensors"), tensors).ok());
  return *Checkpoint::Open(dir.path(), {});
}

// Side by side in one buffer, by three threads.
absl::StatusOr<Buffer> ReadBoth(const Checkpoint& checkpoint,
                                DType dtype,
                                std::vector<int64_t> small_shape) {
  kernels::ThreadPool pool(3);
  const size_t large_bytes = kElements * kernels::DTypeBytes(dtype);
  Buffer both(large_bytes + 2 * kernels::DTypeBytes(dtype));
  const std::vector<TensorRead> reads = {
      {"large", {kRows, kColumns}, dtype, both.bytes().first(large_bytes)},
      {"small", std::move(small_shape), dtype, both.bytes().subspan(large_bytes)}};
  const absl::Status status = ReadTensors(checkpoint, reads, pool);
  return status.ok() ? absl::StatusOr<Buffer>(std::move(both)) : status;
}

void ExpectWhatReadGives(const Checkpoint& checkpoint) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const auto both = ReadBoth(checkpoint, dtype, {2});
    const auto large = checkpoint.Read("large", std::vector<int64_t>{kRows, kColumns}, dtype);
    const auto small = checkpoint.Read("small", std::vector<int64_t>{2}, dtype);
    ASSERT_TRUE(both.ok() && large.ok() && small.ok()) << both.status();
    EXPECT_EQ(std::memcmp(both->data(), large->data(), large->size()), 0);
    EXPECT_EQ(std::memcmp(both->data() + large->size(), small->data(), small->size()), 0);
  }
}

TEST(ReadTensorsTest, TensorsOfFilesAreThoseThatReadGives) {
  const TempDir dir;
  ExpectWhatReadGives(*OpenFiles(dir));
}

TEST(ReadTensorsTest, RandomTensorsAreThoseThatReadGives) {
  for (const DType published : {DType::kF32, DType::kBF16}) {
    ModelConfig config;
    config.dtype = published;
    ExpectWhatReadGives(*MakeRandomCheckpoint("random", config, 3));
  }
}

TEST(ReadTensorsTest, TheFirstTensorThatIsWrongIsNamed) {
  const TempDir dir;
  const auto checkpoint = OpenFiles(dir);
  const absl::Status status = ReadBoth(*checkpoint, DType::kBF16, {1, 2}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("`small`"));
}

TEST(ReadTensorsTest, ATargetOfNoBytesIsCheckedToo) {
  const TempDir dir;
  kernels::ThreadPool pool(1);
  const std::vector<TensorRead> reads = {{"missing", {0}, DType::kF32, {}}};
  EXPECT_EQ(ReadTensors(*OpenFiles(dir), reads, pool).code(), absl::StatusCode::kNotFound);
}

TEST(ReadTensorsTest, PartsOutsideOfATensorAreRefused) {
  const TempDir dir;
  const auto checkpoint = OpenFiles(dir);
  const std::vector<int64_t> shape = {2};
  std::vector<std::byte> target(2 * sizeof(float));
  for (const int64_t first : {int64_t{-1}, int64_t{1}, INT64_MAX}) {
    const absl::Status status = checkpoint->ReadPart("small", shape, DType::kF32, first, target);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << first;
    EXPECT_THAT(std::string(status.message()), HasSubstr("`small`"));
  }
}

}  // namespace
}  // namespace baton::checkpoint
