// The fixed 120-case subset through router, prefill and decode as real processes, once per shipped
// model. The answers are compared with tests/e2e/expected/<model>.jsonl, which tests/e2e/expect
// makes anew.
#include <cmath>
#include <fstream>
#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

#include "tests/support/local_stack.h"

namespace baton::testing {
namespace {

using ::nlohmann::json;

constexpr char kCases[] = BATON_SOURCE_DIR "/tests/data/models/eval";
constexpr char kSubset[] = BATON_SOURCE_DIR "/tests/e2e/subset_120.txt";

std::map<std::string, json> ReadRows(const std::string& path) {
  std::map<std::string, json> rows;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    json row = json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (row.is_object()) {
      rows[row.value("id", "")] = row;
    }
  }
  return rows;
}

class ThreeProcessesTest : public ::testing::TestWithParam<std::string> {};

TEST_P(ThreeProcessesTest, SubsetGivesTheExpectedTokens) {
  const std::string model = GetParam();
  auto stack = LocalStack::Start({.model = BATON_SOURCE_DIR "/tests/data/models/" + model});
  ASSERT_TRUE(stack.ok()) << stack.status();
  const std::string out = (*stack)->folder() + "/rows.jsonl";
  auto eval = ChildProcess::Start({BinaryPath("baton-client"),
                                   "eval",
                                   "--router=" + (*stack)->router_address(),
                                   absl::StrCat("--cases=", kCases),
                                   absl::StrCat("--subset=", kSubset),
                                   "--out=" + out,
                                   "--concurrency=8"},
                                  (*stack)->folder() + "/eval.log");
  ASSERT_TRUE(eval.ok()) << eval.status();
  const absl::StatusOr<int> code = eval->Wait(absl::Minutes(25));
  ASSERT_TRUE(code.ok()) << code.status() << (*stack)->LogTails();
  ASSERT_EQ(*code, 0) << (*stack)->LogTails();

  const auto rows = ReadRows(out);
  const auto expected =
      ReadRows(absl::StrCat(BATON_SOURCE_DIR, "/tests/e2e/expected/", model, ".jsonl"));
  ASSERT_EQ(expected.size(), 120u);
  ASSERT_EQ(rows.size(), expected.size());
  for (const auto& [id, want] : expected) {
    const json& row = rows.at(id);
    EXPECT_EQ(row.at("token_ids"), want.at("token_ids"))
        << id << "; repeat: baton-lab eval --model=tests/data/models/" << model
        << " --cases=tests/data/models/eval, compare the row of this id";
    EXPECT_EQ(row.at("output"), want.at("output")) << id;
    EXPECT_EQ(row.at("correct"), want.at("correct")) << id;
    // Every prompt byte was shipped: dense pages of bf16 are the logical bytes plus slack.
    EXPECT_GE(row.at("kv_wire_bytes").get<int64_t>(), row.at("kv_logical_bytes").get<int64_t>());
    EXPECT_GE(row.at("kv_resident_bytes").get<int64_t>(),
              row.at("kv_logical_bytes").get<int64_t>());
  }
}

INSTANTIATE_TEST_SUITE_P(Models,
                         ThreeProcessesTest,
                         ::testing::Values("tiny-llama-needle",
                                           "tiny-llama-needle-swiftkv-l6",
                                           "tiny-llama-needle-swiftkv-l6-across2"),
                         [](const auto& test) {
                           std::string name = test.param;
                           std::erase(name, '-');
                           return name;
                         });

}  // namespace
}  // namespace baton::testing
