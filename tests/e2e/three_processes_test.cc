// The fixed 120-case subset through router, prefill and decode as real processes, once per shipped
// model. The answers are compared with tests/e2e/expected/<model>.jsonl, which tests/e2e/expect
// makes anew. The twenty prompts of 16,384 tokens are most of the time (a fourth of an hour of a
// core for the model that skips no layer), so every run has one of each kind for one model; all of
// them, for every model, run where BATON_LONGEST_PROMPTS is set.
#include <cstdlib>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

#include "tests/support/child_process.h"
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

// Which prompts of the subset: all but those of 16,384 tokens, the first of these of each kind, or
// all of these, where BATON_LONGEST_PROMPTS is set.
enum class Part { kShorter, kLongestOfEachKind, kLongest };

std::vector<std::string> SubsetIds(Part part) {
  std::vector<std::string> ids;
  std::ifstream file(kSubset);
  for (std::string line; std::getline(file, line);) {
    const bool longest = absl::StrContains(line, "-16384-");
    if (!line.starts_with('#') && longest == (part != Part::kShorter) &&
        (part != Part::kLongestOfEachKind || line.ends_with("-000"))) {
      ids.push_back(line);
    }
  }
  return ids;
}

size_t PromptsOf(Part part) {
  return part == Part::kShorter ? 100 : part == Part::kLongest ? 20 : 10;
}

struct Prompts {
  std::string model;
  Part part = Part::kShorter;
};

class ThreeProcessesTest : public ::testing::TestWithParam<Prompts> {};

TEST_P(ThreeProcessesTest, SubsetGivesTheExpectedTokens) {
  const auto& [model, part] = GetParam();
  if (part == Part::kLongest && std::getenv("BATON_LONGEST_PROMPTS") == nullptr) {
    GTEST_SKIP() << "minutes of a core; run them with BATON_LONGEST_PROMPTS=1";
  }
  const std::vector<std::string> ids = SubsetIds(part);
  ASSERT_EQ(ids.size(), PromptsOf(part));
  auto stack = LocalStack::Start({.model = BATON_SOURCE_DIR "/tests/data/models/" + model});
  ASSERT_TRUE(stack.ok()) << stack.status();
  const std::string subset = (*stack)->folder() + "/subset";
  std::ofstream(subset) << absl::StrJoin(ids, "\n") << "\n";
  const std::string out = (*stack)->folder() + "/rows.jsonl";
  auto eval = ChildProcess::Start({BinaryPath("baton-client"),
                                   "eval",
                                   "--router=" + (*stack)->router_address(),
                                   absl::StrCat("--cases=", kCases),
                                   "--subset=" + subset,
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
  ASSERT_EQ(rows.size(), ids.size());
  for (const std::string& id : ids) {
    const json& want = expected.at(id);
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

constexpr char kModel[] = "tiny-llama-needle";
constexpr char kSwiftKv[] = "tiny-llama-needle-swiftkv-l6";
constexpr char kAcrossKv[] = "tiny-llama-needle-swiftkv-l6-across2";

std::string NameOf(const ::testing::TestParamInfo<Prompts>& test) {
  constexpr const char* kParts[] = {"", "longest_of_each_kind", "longest"};
  std::string name = absl::StrCat(test.param.model, kParts[static_cast<size_t>(test.param.part)]);
  std::erase(name, '-');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Models,
                         ThreeProcessesTest,
                         ::testing::Values(Prompts{.model = kModel},
                                           Prompts{.model = kSwiftKv},
                                           Prompts{.model = kAcrossKv},
                                           Prompts{.model = kSwiftKv,
                                                   .part = Part::kLongestOfEachKind},
                                           Prompts{.model = kModel, .part = Part::kLongest},
                                           Prompts{.model = kSwiftKv, .part = Part::kLongest},
                                           Prompts{.model = kAcrossKv, .part = Part::kLongest}),
                         NameOf);

}  // namespace
}  // namespace baton::testing
