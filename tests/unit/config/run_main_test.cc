#include "common/config/run_main.h"

#include <cstdlib>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace baton::config {
namespace {

using testing::ElementsAre;

TEST(RunMainTest, FlagNamesMayHaveDashes) {
  EXPECT_THAT(NormalizeFlagNames({"--pro-gram",
                                  "--input-ids=a-b",
                                  "--dry-run",
                                  "-",
                                  "a-b",
                                  "--input_ids",
                                  "x-y",
                                  "--",
                                  "--left-alone"}),
              ElementsAre("--pro-gram",
                          "--input_ids=a-b",
                          "--dry_run",
                          "-",
                          "a-b",
                          "--input_ids",
                          "x-y",
                          "--",
                          "--left-alone"));
}

// Exits with what RunMain returns, since the process may set its flag usage only once.
void ExitWithRunMain(const absl::Status& result) {
  std::string name = "test";
  std::string argument = "positional";
  char* argv[] = {name.data(), argument.data(), nullptr};
  const Program program = {"test", "usage", "1.2.3"};
  std::exit(RunMain(2, argv, program, [&](const Arguments& arguments) {
    return arguments == Arguments{"positional"} ? result : absl::UnknownError("arguments");
  }));
}

TEST(RunMainDeathTest, ExitStatusTellsBadArgumentsFromFailures) {
  EXPECT_EXIT(ExitWithRunMain(absl::OkStatus()), testing::ExitedWithCode(0), "");
  EXPECT_EXIT(ExitWithRunMain(absl::InvalidArgumentError("flag --x")),
              testing::ExitedWithCode(2),
              "test: flag --x");
  EXPECT_EXIT(
      ExitWithRunMain(absl::InternalError("broken")), testing::ExitedWithCode(1), "test: broken");
}

}  // namespace
}  // namespace baton::config
