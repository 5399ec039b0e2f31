// A service that still loads its model.
#include <sys/stat.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"

#include "tests/support/child_process.h"
#include "tests/support/local_stack.h"
#include "tests/unit/checkpoint/temp_dir.h"

namespace baton::testing {
namespace {

class LoadingTest : public ::testing::TestWithParam<const char*> {};

INSTANTIATE_TEST_SUITE_P(Services,
                         LoadingTest,
                         ::testing::Values("baton-router", "baton-prefill", "baton-decode"),
                         [](const auto& param) { return std::string(param.param).substr(6); });

// The model's configuration is a pipe that nobody writes to: it is read for ever.
TEST_P(LoadingTest, ASignalEndsItAndThePortsOfTheRunBeforeAreGone) {
  const TempDir model;
  ASSERT_EQ(mkfifo((model.path() + "/config.json").c_str(), 0600), 0);
  const TempDir run;
  const std::string ports = run.path() + "/ports.json";
  std::ofstream(ports) << "{\"grpc\":1,\"metrics\":2}\n";
  std::vector<std::string> argv = {BinaryPath(GetParam()),
                                   "--model=" + model.path(),
                                   "--listen=127.0.0.1:0",
                                   "--metrics_listen=127.0.0.1:0",
                                   "--port_file=" + ports};
  if (std::string_view(GetParam()) == "baton-router") {
    argv.emplace_back("--decode=127.0.0.1:1");
  }
  auto process = ChildProcess::Start(argv, run.path() + "/log");
  ASSERT_TRUE(process.ok()) << process.status();
  const absl::Time patience = absl::Now() + absl::Seconds(30);
  while (std::filesystem::exists(ports) && absl::Now() < patience) {
    absl::SleepFor(absl::Milliseconds(1));
  }
  EXPECT_FALSE(std::filesystem::exists(ports));
  EXPECT_TRUE(process->running());
  process->Signal(SIGTERM);
  const absl::StatusOr<int> code = process->Wait(absl::Seconds(30));
  ASSERT_TRUE(code.ok()) << code.status();
  EXPECT_EQ(*code, 128 + SIGTERM);
}

}  // namespace
}  // namespace baton::testing
