#include "common/checkpoint/weight_index.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace baton::checkpoint {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pair;

TEST(WeightIndexTest, GroupsTensorsByFile) {
  const auto index = ParseWeightIndex(
      R"({"metadata":{"total_size":1},"weight_map":{"a":"1.safetensors","b":"2.safetensors",)"
      R"("c":"1.safetensors"}})");
  ASSERT_TRUE(index.ok()) << index.status();
  EXPECT_THAT(*index,
              ElementsAre(Pair("1.safetensors", ElementsAre("a", "c")),
                          Pair("2.safetensors", ElementsAre("b"))));
}

TEST(WeightIndexTest, FilesOutsideTheDirectoryAreRefused) {
  for (const char* file : {"../x.safetensors", "/etc/passwd", "a/../../x", "", ".."}) {
    const auto index = ParseWeightIndex(std::string(R"({"weight_map":{"a":")") + file + R"("}})");
    EXPECT_EQ(index.status().code(), absl::StatusCode::kInvalidArgument) << file;
    EXPECT_THAT(std::string(index.status().message()), HasSubstr(file));
  }
}

TEST(WeightIndexTest, MalformedTextIsRefused) {
  for (const char* text : {"",
                           "[]",
                           "{}",
                           R"({"weight_map":[]})",
                           R"({"weight_map":{}})",
                           R"({"weight_map":{"a":1}})"}) {
    EXPECT_FALSE(ParseWeightIndex(text).ok()) << text;
  }
}

}  // namespace
}  // namespace baton::checkpoint
