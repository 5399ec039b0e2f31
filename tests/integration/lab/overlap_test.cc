// baton-lab overlap: the key basis of a first prompt in a later turn.
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

#include "tests/integration/lab/lab_run.h"
#include "tests/unit/checkpoint/temp_dir.h"

namespace baton::lab {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

const std::string kModels = std::string(BATON_SOURCE_DIR) + "/tests/data/models/";

// One conversation of two turns, in a folder of its own.
class OverlapTest : public testing::Test {
 protected:
  OverlapTest() {
    std::string text = "Read the text and answer the question.\n\nText: ";
    for (int i = 0; i < 60; ++i) {
      absl::StrAppend(&text, "The serial code of item number ", i * i, " is ", 7919 * i, ". ");
    }
    folder_.Write("talk.jsonl",
                  Case(text, {{{"question", "And of item 4?"}, {"answer", "15838"}}}));
    folder_.Write("short.jsonl", Case("Hello.", {{{"question", "Again?"}, {"answer", "Yes."}}}));
    folder_.Write("one.jsonl", Case(text, json::array()));
  }

  LabRun Overlap(const std::string& model,
                 const std::string& cases,
                 const std::vector<std::string>& flags) {
    std::vector<std::string> arguments = {
        "overlap", "--model=" + kModels + model, "--cases=" + folder_.File(cases), "--threads=1"};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    return RunLab(arguments);
  }

 private:
  static std::string Case(const std::string& text, const json& follow_ups) {
    const json line = {{"id", "talk"},
                       {"task", "conversation"},
                       {"length_bucket", 512},
                       {"messages", {{{"role", "user"}, {"content", text}}}},
                       {"answer", "7919"},
                       {"max_new_tokens", 8},
                       {"prompt_tokens", 600},
                       {"follow_ups", follow_ups}};
    return line.dump() + "\n";
  }

  const TempDir folder_;
};

class ModelOverlapTest : public OverlapTest, public testing::WithParamInterface<std::string> {};

// The cells of the table's lines, the head left out.
std::vector<std::vector<double>> ReadTable(const std::string& output) {
  std::vector<std::vector<double>> lines;
  for (const absl::string_view line : absl::StrSplit(output, '\n', absl::SkipEmpty())) {
    std::vector<double> cells;
    for (const absl::string_view cell : absl::StrSplit(line, '|', absl::SkipWhitespace())) {
      double value = 0.0;
      if (absl::SimpleAtod(cell, &value)) {
        cells.push_back(value);
      }
    }
    if (!cells.empty()) {
      lines.push_back(std::move(cells));
    }
  }
  return lines;
}

TEST_P(ModelOverlapTest, AFullBasisFitsEveryTurnAndASmallOneItsOwnBest) {
  const LabRun run = Overlap(GetParam(), "talk.jsonl", {"--rank=128,24"});
  ASSERT_EQ(run.exit_code, 0) << run.errors;
  EXPECT_THAT(run.output, HasSubstr("| overlap at 128 |"));
  const auto lines = ReadTable(run.output);
  ASSERT_EQ(lines.size(), 2u) << run.output;
  for (size_t turn = 0; turn < 2; ++turn) {
    const std::vector<double>& cells = lines[turn];
    ASSERT_EQ(cells.size(), 10u) << run.output;
    EXPECT_EQ(cells[0], static_cast<double>(turn + 1));
    EXPECT_EQ(cells[1], 1.0);
    for (const size_t cell : {4u, 5u, 6u}) {
      EXPECT_EQ(cells[cell], cell == 4 ? 1.0 : 100.0) << "rank 128, cell " << cell;
    }
    EXPECT_GE(cells[9], cells[8]) << "rank 24";
    EXPECT_LT(cells[9], 100.0);
    EXPECT_GT(cells[8], 50.0);
  }
  EXPECT_EQ(lines[0][7], 1.0) << "a turn with itself";
  EXPECT_LT(lines[1][7], 1.0);
  EXPECT_GT(lines[1][7], 0.8) << "most of the keys are the same";
  EXPECT_EQ(lines[0][3], lines[0][2]) << "all tokens of the first turn are new";
  EXPECT_LT(lines[1][3], 60.0);
  EXPECT_EQ(lines[1][2], lines[0][2] + lines[1][3]);
}

INSTANTIATE_TEST_SUITE_P(Models,
                         ModelOverlapTest,
                         testing::Values("tiny-llama-needle",
                                         "tiny-llama-needle-swiftkv-l6-across2"),
                         [](const auto& test) {
                           return test.param.ends_with("across2") ? "swiftkv" : "base";
                         });

TEST_F(OverlapTest, ThreadsChangeNothing) {
  const std::string model = "tiny-llama-needle-swiftkv-l6-across2";
  const LabRun one = Overlap(model, "short.jsonl", {"--rank=4"});
  ASSERT_EQ(one.exit_code, 0) << one.errors;
  const LabRun two = Overlap(model, "short.jsonl", {"--rank=4", "--threads=2"});
  EXPECT_EQ(two.output, one.output);
}

TEST_F(OverlapTest, BadFlagsAndCasesAreNamed) {
  const std::string model = "tiny-llama-needle";
  const auto expect = [&](const LabRun& run, const std::vector<std::string>& words) {
    EXPECT_NE(run.exit_code, 0);
    for (const std::string& word : words) {
      EXPECT_THAT(run.errors, HasSubstr(word));
    }
  };
  expect(Overlap(model, "talk.jsonl", {"--rank=0"}), {"--rank", "\"0\""});
  expect(Overlap(model, "talk.jsonl", {"--rank=32,x"}), {"--rank", "\"x\""});
  expect(Overlap(model, "talk.jsonl", {"--rank=129"}), {"case talk", "rank 129", "128 wide"});
  expect(Overlap(model, "short.jsonl", {"--rank=96"}), {"case talk", "rank 96", "tokens"});
  expect(Overlap(model, "one.jsonl", {}), {"case talk", "follow_ups"});
  expect(Overlap(model, "none.jsonl", {}), {"none.jsonl"});
  expect(RunLab({"overlap", "--model", kModels + model}), {"--cases"});
}

}  // namespace
}  // namespace baton::lab
