// Proves that the preset `tsan` can be believed: a planted race in a gRPC reactor is reported, and
// the same program without it is not.

#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace baton {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr int kThreadSanitizerExitCode = 66;

struct Outcome {
  int exit_code = -1;
  std::string output;
};

// Runs the canary with the sanitizer options of the environment (set by ctest).
Outcome RunCanary(const std::string& mode) {
  Outcome outcome;
  const std::string command = std::string(BATON_TSAN_CANARY) + " " + mode + " 2>&1";
  FILE* const pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return outcome;
  std::array<char, 4096> buffer;
  for (size_t size = 0; (size = fread(buffer.data(), 1, buffer.size(), pipe)) > 0;) {
    outcome.output.append(buffer.data(), size);
  }
  const int status = pclose(pipe);
  if (WIFEXITED(status)) outcome.exit_code = WEXITSTATUS(status);
  return outcome;
}

TEST(TsanCanaryTest, ReportsAPlantedRaceInAReactor) {
  const Outcome outcome = RunCanary("race");
  EXPECT_EQ(outcome.exit_code, kThreadSanitizerExitCode) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("ThreadSanitizer: data race"));
  EXPECT_THAT(outcome.output, HasSubstr("CountMessage"));
}

TEST(TsanCanaryTest, ReportsNothingForCorrectReactors) {
  const Outcome outcome = RunCanary("clean");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  EXPECT_THAT(outcome.output, Not(HasSubstr("WARNING: ThreadSanitizer")));
}

}  // namespace
}  // namespace baton
