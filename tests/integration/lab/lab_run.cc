#include "tests/integration/lab/lab_run.h"

#include <fstream>
#include <ios>
#include <sstream>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "gtest/gtest.h"

#include "tests/support/child_process.h"
#include "tests/support/local_stack.h"
#include "tests/unit/checkpoint/temp_dir.h"

namespace baton::lab {
namespace {

std::string ReadText(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

}  // namespace

LabRun RunLab(std::vector<std::string> arguments, const std::string& input) {
  const TempDir folder;
  folder.Write("in", input);
  arguments.insert(arguments.begin(), testing::BinaryPath("baton-lab"));
  auto process = testing::ChildProcess::Start(
      arguments,
      {.output = folder.File("out"), .errors = folder.File("err"), .input = folder.File("in")});
  EXPECT_TRUE(process.ok()) << process.status();
  LabRun run;
  if (process.ok()) {
    const absl::StatusOr<int> code = process->Wait(absl::Seconds(60));
    EXPECT_TRUE(code.ok()) << code.status();
    run.exit_code = code.value_or(-1);
  }
  run.output = ReadText(folder.File("out"));
  run.errors = ReadText(folder.File("err"));
  return run;
}

std::vector<nlohmann::json> ReadRows(const std::string& path) {
  std::vector<nlohmann::json> rows;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    rows.push_back(nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false));
  }
  return rows;
}

}  // namespace baton::lab
