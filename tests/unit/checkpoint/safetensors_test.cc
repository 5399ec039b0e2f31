#include <cstring>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "common/checkpoint/safetensors_file.h"
#include "common/checkpoint/safetensors_header.h"
#include "common/checkpoint/safetensors_writer.h"
#include "tests/unit/checkpoint/temp_dir.h"

namespace baton::checkpoint {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::span<const std::byte> Bytes(const std::string& text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

// A file with the given header text and data bytes.
std::string MakeFile(const std::string& header, size_t data_bytes) {
  const uint64_t size = header.size();
  std::string file(8, '\0');
  std::memcpy(file.data(), &size, 8);
  return file + header + std::string(data_bytes, 'd');
}

absl::Status HeaderStatus(const std::string& file) {
  return ParseSafetensorsHeader(Bytes(file)).status();
}

std::string TwoTensorFile() {
  return MakeFile(
      R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
      R"("b":{"dtype":"BF16","shape":[4],"data_offsets":[24,32]}})",
      32);
}

TEST(SafetensorsTest, WriterAndReaderRoundTrip) {
  const TempDir dir;
  const std::vector<float> floats = {1.5f, -2.0f, 3.25f, 0.0f, 1e-30f, 7.0f};
  const std::vector<int64_t> integers = {1, -1, 1LL << 40};
  const std::vector<NamedTensor> tensors = {
      {"logits", {kernels::DType::kF32, {2, 3}, std::as_bytes(std::span(floats))}},
      {"empty", {kernels::DType::kF32, {0, 3}, {}}},
      {"greedy", {kernels::DType::kI64, {3}, std::as_bytes(std::span(integers))}}};
  const std::string path = dir.File("x.safetensors");
  ASSERT_TRUE(WriteSafetensors(path, tensors).ok());
  const absl::StatusOr<SafetensorsFile> file = SafetensorsFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_THAT(file->Names(), ElementsAre("empty", "greedy", "logits"));
  for (const NamedTensor& expected : tensors) {
    const absl::StatusOr<TensorView> view = file->View(expected.name);
    ASSERT_TRUE(view.ok()) << view.status();
    EXPECT_EQ(view->dtype, expected.tensor.dtype);
    EXPECT_EQ(view->shape, expected.tensor.shape);
    ASSERT_EQ(view->bytes.size(), expected.tensor.bytes.size());
    EXPECT_TRUE(std::equal(view->bytes.begin(), view->bytes.end(), expected.tensor.bytes.begin()));
  }
}

TEST(SafetensorsTest, WriterMakesExactBytes) {
  const std::vector<uint8_t> bytes = {1, 2, 3};
  const std::vector<NamedTensor> tensors = {
      {"t", {kernels::DType::kU8, {3}, std::as_bytes(std::span(bytes))}}};
  const absl::StatusOr<std::string> preamble = SafetensorsPreamble(tensors);
  ASSERT_TRUE(preamble.ok());
  EXPECT_EQ(*preamble,
            std::string("\x38\0\0\0\0\0\0\0", 8) +
                R"({"t":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}})" + "   ");
}

TEST(SafetensorsTest, WriterRefusesRepeatedNamesAndWrongSizes) {
  const std::vector<uint8_t> bytes = {1, 2, 3};
  const TensorView good = {kernels::DType::kU8, {3}, std::as_bytes(std::span(bytes))};
  const TensorView bad = {kernels::DType::kU8, {4}, std::as_bytes(std::span(bytes))};
  EXPECT_FALSE(SafetensorsPreamble(std::vector<NamedTensor>{{"t", good}, {"t", good}}).ok());
  EXPECT_FALSE(SafetensorsPreamble(std::vector<NamedTensor>{{"t", bad}}).ok());
}

TEST(SafetensorsTest, EveryTruncationIsRefused) {
  const std::string file = TwoTensorFile();
  ASSERT_TRUE(HeaderStatus(file).ok());
  for (size_t length = 0; length < file.size(); ++length) {
    EXPECT_EQ(HeaderStatus(file.substr(0, length)).code(), absl::StatusCode::kDataLoss) << length;
  }
}

TEST(SafetensorsTest, ExtraBytesAreRefused) {
  EXPECT_FALSE(HeaderStatus(TwoTensorFile() + "x").ok());
}

TEST(SafetensorsTest, FlippedHeaderBitsNeverGiveATensorOutsideTheFile) {
  const std::string file = TwoTensorFile();
  const size_t header_end = file.size() - 32;
  for (size_t bit = 0; bit < header_end * 8; ++bit) {
    std::string flipped = file;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << (bit % 8)));
    const auto entries = ParseSafetensorsHeader(Bytes(flipped));
    if (!entries.ok()) {
      continue;
    }
    for (const SafetensorsEntry& entry : *entries) {
      EXPECT_LE(entry.begin, entry.end) << "bit " << bit;
      EXPECT_LE(entry.end, flipped.size()) << "bit " << bit;
    }
  }
}

TEST(SafetensorsTest, HugeHeaderSizesAreRefused) {
  for (const uint64_t size : {kMaxSafetensorsHeaderBytes + 1, uint64_t{1} << 63, ~uint64_t{0}}) {
    std::string file = TwoTensorFile();
    std::memcpy(file.data(), &size, 8);
    EXPECT_EQ(HeaderStatus(file).code(), absl::StatusCode::kDataLoss);
  }
}

struct BadHeader {
  const char* label;
  const char* header;
  size_t data_bytes;
  const char* message;
};

class SafetensorsHeaderTest : public testing::TestWithParam<BadHeader> {};

TEST_P(SafetensorsHeaderTest, IsRefusedWithAReason) {
  const BadHeader& bad = GetParam();
  const absl::Status status = HeaderStatus(MakeFile(bad.header, bad.data_bytes));
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), HasSubstr(bad.message));
}

INSTANTIATE_TEST_SUITE_P(
    Headers,
    SafetensorsHeaderTest,
    testing::Values(
        BadHeader{"Overlap",
                  R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
                  R"("b":{"dtype":"U8","shape":[4],"data_offsets":[2,6]}})",
                  6,
                  "overlaps"},
        BadHeader{"Hole",
                  R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
                  R"("b":{"dtype":"U8","shape":[2],"data_offsets":[3,5]}})",
                  5,
                  "hole"},
        BadHeader{"RepeatedName",
                  R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
                  R"("a":{"dtype":"U8","shape":[2],"data_offsets":[2,4]}})",
                  4,
                  "twice"},
        BadHeader{"PastTheEnd",
                  R"({"a":{"dtype":"U8","shape":[9],"data_offsets":[0,9]}})",
                  8,
                  "truncated"},
        BadHeader{"BackwardOffsets",
                  R"({"a":{"dtype":"U8","shape":[0],"data_offsets":[4,0]}})",
                  4,
                  "data_offsets"},
        BadHeader{
            "WrongSize", R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", 4, "shape"},
        BadHeader{
            "UnknownDtype", R"({"a":{"dtype":"F31","shape":[1],"data_offsets":[0,4]}})", 4, "F31"},
        BadHeader{"NegativeExtent",
                  R"({"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})",
                  4,
                  "shape"},
        BadHeader{"OverflowingShape",
                  R"({"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,4]}})",
                  4,
                  "overflow"},
        BadHeader{"MissingField", R"({"a":{"dtype":"F32","shape":[1]}})", 4, "data_offsets"},
        BadHeader{"NotAnObject", R"([1])", 0, "object"},
        BadHeader{"NotJson", "{", 0, "object"}),
    [](const auto& test) { return test.param.label; });

TEST(SafetensorsTest, UnreadableDtypeIsNamedOnlyWhenAskedFor) {
  const TempDir dir;
  dir.Write("x.safetensors",
            MakeFile(R"({"w":{"dtype":"F8_E4M3","shape":[4],"data_offsets":[0,4]}})", 4));
  const auto file = SafetensorsFile::Open(dir.File("x.safetensors"));
  ASSERT_TRUE(file.ok()) << file.status();
  const absl::Status status = file->View("w").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(status.message()), HasSubstr("F8_E4M3"));
  EXPECT_EQ(file->View("v").status().code(), absl::StatusCode::kNotFound);
}

TEST(SafetensorsTest, PlaceholderFilesAreRecognised) {
  const TempDir dir;
  dir.Write("link.safetensors", "../other/model.safetensors");
  dir.Write("lfs.safetensors", "version https://git-lfs.github.com/spec/v1\noid sha256:ab\n");
  EXPECT_THAT(std::string(SafetensorsFile::Open(dir.File("link.safetensors")).status().message()),
              HasSubstr("symbolic link to \"../other/model.safetensors\""));
  EXPECT_THAT(std::string(SafetensorsFile::Open(dir.File("lfs.safetensors")).status().message()),
              HasSubstr("large-file pointer"));
}

TEST(SafetensorsTest, EmptyFileAndDirectoryAreRefused) {
  const TempDir dir;
  dir.Write("empty.safetensors", "");
  EXPECT_EQ(SafetensorsFile::Open(dir.File("empty.safetensors")).status().code(),
            absl::StatusCode::kDataLoss);
  EXPECT_FALSE(SafetensorsFile::Open(dir.path()).ok());
  EXPECT_EQ(SafetensorsFile::Open(dir.File("none")).status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace baton::checkpoint
