#include "common/config/check_flag.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace baton::config {
namespace {

using testing::HasSubstr;

TEST(CheckFlagTest, RangeNamesFlagAndLimits) {
  EXPECT_TRUE(CheckFlagRange("threads", 1, 1, 8).ok());
  EXPECT_TRUE(CheckFlagRange("threads", 8, 1, 8).ok());
  const absl::Status status = CheckFlagRange("threads", 9, 1, 8);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("--threads is 9; it must be in [1, 8]"));
}

TEST(CheckFlagTest, ChoiceListsTheChoices) {
  EXPECT_TRUE(CheckFlagChoice("compute", "bf16", {"bf16", "fp32"}).ok());
  EXPECT_THAT(std::string(CheckFlagChoice("compute", "int8", {"bf16", "fp32"}).message()),
              HasSubstr("bf16, fp32"));
}

TEST(CheckFlagTest, SetNamesTheFlag) {
  EXPECT_TRUE(CheckFlagSet("model", "x").ok());
  EXPECT_THAT(std::string(CheckFlagSet("model", "").message()), HasSubstr("--model"));
}

}  // namespace
}  // namespace baton::config
