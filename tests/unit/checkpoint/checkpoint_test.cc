#include "common/checkpoint/checkpoint.h"

#include <array>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "common/checkpoint/safetensors_writer.h"
#include "kernels/core/buffer.h"
#include "kernels/core/dtype.h"
#include "tests/unit/checkpoint/small_config.h"
#include "tests/unit/checkpoint/temp_dir.h"

namespace baton::checkpoint {
namespace {

using kernels::DType;
using testing::ElementsAre;
using testing::HasSubstr;

void WriteTensors(const std::string& path, const std::vector<std::string>& names, float value) {
  const std::vector<float> floats = {value, value + 1};
  std::vector<NamedTensor> tensors;
  tensors.reserve(names.size());
  for (const std::string& name : names) {
    tensors.push_back({name, {DType::kF32, {2}, std::as_bytes(std::span(floats))}});
  }
  ASSERT_TRUE(WriteSafetensors(path, tensors).ok());
}

absl::StatusOr<float> FirstValue(const Checkpoint& checkpoint, const char* name) {
  const std::array<int64_t, 1> shape = {2};
  const absl::StatusOr<kernels::Buffer> buffer = checkpoint.Read(name, shape, DType::kF32);
  return buffer.ok() ? absl::StatusOr<float>(buffer->as<float>()[0]) : buffer.status();
}

TEST(CheckpointTest, ReadsASingleFile) {
  const TempDir dir;
  dir.Write("config.json", kSmallConfig);
  WriteTensors(dir.File("model.safetensors"), {"a", "b"}, 3.0f);
  const auto checkpoint = Checkpoint::Open(dir.path(), {});
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_TRUE((*checkpoint)->Has("a"));
  EXPECT_FALSE((*checkpoint)->Has("c"));
  EXPECT_THAT((*checkpoint)->TensorNames(), ElementsAre("a", "b"));
  EXPECT_EQ(*FirstValue(**checkpoint, "a"), 3.0f);
  EXPECT_EQ(FirstValue(**checkpoint, "c").status().code(), absl::StatusCode::kNotFound);
  const std::array<int64_t, 2> wrong_shape = {1, 2};
  const absl::Status status = (*checkpoint)->Read("a", wrong_shape, DType::kF32).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("`a`"));
}

TEST(CheckpointTest, AShapeThatNoMemoryHasRoomForIsRefusedBeforeMemoryIsTaken) {
  const TempDir dir;
  dir.Write("config.json", kSmallConfig);
  WriteTensors(dir.File("model.safetensors"), {"a"}, 3.0f);
  const auto checkpoint = Checkpoint::Open(dir.path(), {});
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  const std::array<int64_t, 1> shape = {int64_t{1} << 50};
  EXPECT_EQ((*checkpoint)->Read("a", shape, DType::kF32).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(CheckpointTest, ReadsOnlyWhatTheIndexMaps) {
  const TempDir dir;
  dir.Write("config.json", kSmallConfig);
  WriteTensors(dir.File("1.safetensors"), {"a", "b"}, 1.0f);
  WriteTensors(dir.File("2.safetensors"), {"b", "c"}, 2.0f);
  dir.Write("consolidated.safetensors", "not a safetensors file");
  dir.Write("model.safetensors.index.json",
            R"({"weight_map":{"a":"1.safetensors","b":"2.safetensors"}})");
  const auto checkpoint = Checkpoint::Open(dir.path(), {});
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_EQ(*FirstValue(**checkpoint, "a"), 1.0f);
  EXPECT_EQ(*FirstValue(**checkpoint, "b"), 2.0f);
  EXPECT_FALSE((*checkpoint)->Has("c"));
}

TEST(CheckpointTest, ShardMayBeASymbolicLinkOutOfTheDirectory) {
  const TempDir other;
  WriteTensors(other.File("real.safetensors"), {"a"}, 5.0f);
  const TempDir dir;
  dir.Write("config.json", kSmallConfig);
  std::filesystem::create_symlink(other.File("real.safetensors"), dir.File("1.safetensors"));
  dir.Write("model.safetensors.index.json", R"({"weight_map":{"a":"1.safetensors"}})");
  const auto checkpoint = Checkpoint::Open(dir.path(), {});
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_EQ(*FirstValue(**checkpoint, "a"), 5.0f);
}

TEST(CheckpointTest, IndexThatPlacesATensorWronglyIsRefused) {
  const TempDir dir;
  dir.Write("config.json", kSmallConfig);
  WriteTensors(dir.File("1.safetensors"), {"a"}, 1.0f);
  dir.Write("model.safetensors.index.json", R"({"weight_map":{"z":"1.safetensors"}})");
  const absl::Status status = Checkpoint::Open(dir.path(), {}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr("`z`"));
}

TEST(CheckpointTest, MissingFilesAreNamed) {
  const TempDir dir;
  EXPECT_THAT(std::string(Checkpoint::Open(dir.path(), {}).status().message()),
              HasSubstr("config.json"));
  dir.Write("config.json", kSmallConfig);
  EXPECT_THAT(std::string(Checkpoint::Open(dir.path(), {}).status().message()),
              HasSubstr("model.safetensors"));
  dir.Write("model.safetensors.index.json", R"({"weight_map":{"a":"1.safetensors"}})");
  EXPECT_THAT(std::string(Checkpoint::Open(dir.path(), {}).status().message()),
              HasSubstr("1.safetensors"));
}

TEST(CheckpointTest, FingerprintTellsWeightsApart) {
  std::vector<uint64_t> prints;
  for (const float value : {1.0f, 1.0f, 2.0f}) {
    const TempDir dir;
    dir.Write("config.json", kSmallConfig);
    WriteTensors(dir.File("model.safetensors"), {"a"}, value);
    prints.push_back((*Checkpoint::Open(dir.path(), {}))->fingerprint());
  }
  EXPECT_EQ(prints[0], prints[1]);
  EXPECT_NE(prints[0], prints[2]);
}

TEST(CheckpointTest, RandomWeightsNeedOnlyTheConfiguration) {
  const TempDir dir;
  dir.Write("config.json", kSmallConfig);
  const auto first = Checkpoint::Open(dir.path(), {.random_weights_seed = 1});
  const auto second = Checkpoint::Open(dir.path(), {.random_weights_seed = 2});
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_TRUE((*first)->Has("anything"));
  EXPECT_NE((*first)->fingerprint(), (*second)->fingerprint());
  EXPECT_NE(*FirstValue(**first, "w"), *FirstValue(**second, "w"));
  const std::array<int64_t, 1> shape = {2};
  const auto as_f32 = (*first)->Read("w", shape, DType::kF32);
  const auto as_bf16 = (*first)->Read("w", shape, DType::kBF16);
  ASSERT_TRUE(as_f32.ok() && as_bf16.ok());
  EXPECT_EQ(static_cast<uint32_t>(as_bf16->as<uint16_t>()[1]) << 16, as_f32->as<uint32_t>()[1])
      << "both computes see the same weights";
}

}  // namespace
}  // namespace baton::checkpoint
