// baton-lab eval: both roles answer alike, rows carry the accounting, an interrupted file goes on.
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
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
constexpr char kModel[] = "tiny-llama-needle-swiftkv-l6-across2";
constexpr int kCases = 4;

LabRun RunEval(const std::string& out, const std::vector<std::string>& flags) {
  std::vector<std::string> arguments = {"eval",
                                        absl::StrCat("--model=", kModels, kModel),
                                        absl::StrCat("--cases=", kModels, "eval/chain.jsonl"),
                                        absl::StrCat("--limit=", kCases),
                                        "--threads=1",
                                        "--out=" + out};
  arguments.insert(arguments.end(), flags.begin(), flags.end());
  return RunLab(arguments);
}

TEST(EvalTest, RolesBothAndSplitGiveTheSameTokens) {
  const TempDir folder;
  const LabRun both = RunEval(folder.File("both"), {"--role=both"});
  ASSERT_EQ(both.exit_code, 0) << both.errors;
  EXPECT_THAT(both.output, HasSubstr(absl::StrCat("/", kCases))) << "the table";
  const LabRun split = RunEval(folder.File("split"), {"--role=split"});
  ASSERT_EQ(split.exit_code, 0) << split.errors;
  const std::vector<json> whole = ReadRows(folder.File("both"));
  const std::vector<json> halves = ReadRows(folder.File("split"));
  ASSERT_EQ(whole.size(), size_t{kCases});
  ASSERT_EQ(halves.size(), whole.size());
  for (size_t i = 0; i < whole.size(); ++i) {
    SCOPED_TRACE(whole[i].at("id").get<std::string>());
    EXPECT_FALSE(whole[i].at("token_ids").empty());
    EXPECT_EQ(halves[i].at("token_ids"), whole[i].at("token_ids"));
    EXPECT_EQ(halves[i].at("output"), whole[i].at("output"));
    // 6 + 6 / 2 KV layers of 2 heads of 64, K and V, 2 bytes each.
    const int64_t logical = whole[i].at("prompt_tokens").get<int64_t>() * 9 * 2 * 2 * 64 * 2;
    EXPECT_EQ(whole[i].at("kv_logical_bytes"), logical);
    EXPECT_EQ(whole[i].at("kv_wire_bytes"), 0);
    EXPECT_GE(whole[i].at("kv_resident_bytes"), logical);
    EXPECT_EQ(halves[i].at("kv_logical_bytes"), logical);
    EXPECT_GT(halves[i].at("kv_wire_bytes"), logical);
    EXPECT_EQ(halves[i].at("kv_resident_bytes"), whole[i].at("kv_resident_bytes"));
  }
}

// A document with two needles, asked for one after the other.
std::string ConversationFile(const TempDir& folder) {
  std::string text = "Read the text and answer the question.\n\nText: ";
  for (int i = 0; i < 24; ++i) {
    text += "The quiet lagoon beside the orchard was calm. ";
  }
  text += "The magic number of red-barn is 731. The magic number of blue-gate is 482. ";
  const json line = {
      {"id", "talk"},
      {"task", "conversation"},
      {"length_bucket", 512},
      {"messages",
       {{{"role", "user"}, {"content", text + "\n\nWhat is the magic number of red-barn?"}}}},
      {"answer", "731"},
      {"max_new_tokens", 8},
      {"prompt_tokens", 300},
      {"follow_ups",
       {{{"question", "What is the magic number of blue-gate?"}, {"answer", "482"}},
        {{"question", "What is the magic number of red-barn?"}, {"answer", "731"}}}}};
  folder.Write("talk.jsonl", line.dump() + "\n");
  return folder.File("talk.jsonl");
}

TEST(EvalTest, ConversationsOnKeptKvAnswerLikeWholePrefillsInBothRoles) {
  const TempDir folder;
  const std::string cases = "--cases=" + ConversationFile(folder);
  const LabRun whole = RunEval(folder.File("whole"), {cases});
  ASSERT_EQ(whole.exit_code, 0) << whole.errors;
  const std::vector<json> expected = ReadRows(folder.File("whole"));
  ASSERT_EQ(expected.size(), 3u);
  for (const char* role : {"both", "split"}) {
    SCOPED_TRACE(role);
    const std::string out = folder.File(role);
    const LabRun kept = RunEval(out, {cases, "--sessions", absl::StrCat("--role=", role)});
    ASSERT_EQ(kept.exit_code, 0) << kept.errors;
    const std::vector<json> rows = ReadRows(out);
    ASSERT_EQ(rows.size(), expected.size());
    for (size_t turn = 0; turn < rows.size(); ++turn) {
      EXPECT_EQ(rows[turn].at("id"), expected[turn].at("id"));
      EXPECT_EQ(rows[turn].at("token_ids"), expected[turn].at("token_ids")) << "turn " << turn;
      const auto cached = rows[turn].at("cached_tokens").get<int64_t>();
      EXPECT_EQ(cached > 0, turn > 0) << "turn " << turn;
      EXPECT_EQ(expected[turn].at("cached_tokens"), 0);
    }
  }
}

TEST(EvalTest, ResumeRunsOnlyWhatIsMissing) {
  const TempDir folder;
  const std::string out = folder.File("rows");
  ASSERT_EQ(RunEval(out, {"--limit=2"}).exit_code, 0);
  const std::vector<json> before = ReadRows(out);
  ASSERT_EQ(before.size(), 2u);
  const LabRun resumed = RunEval(out, {"--limit=3", "--resume"});
  ASSERT_EQ(resumed.exit_code, 0) << resumed.errors;
  const std::vector<json> rows = ReadRows(out);
  ASSERT_EQ(rows.size(), 3u);
  EXPECT_EQ(rows[0], before[0]) << "with its times: it was not run again";
  EXPECT_EQ(rows[1], before[1]);
}

TEST(EvalTest, BadFlagsAreNamed) {
  const TempDir folder;
  for (const auto& [flag, word] :
       std::vector<std::pair<std::string, std::string>>{{"--role=prefill", "role"},
                                                        {"--kv=zip", "zip"},
                                                        {"--cases=nowhere.jsonl", "nowhere.jsonl"},
                                                        {"--limit=-1", "limit"},
                                                        {"--compute=int8", "int8"}}) {
    const LabRun run = RunEval(folder.File("rows"), {flag});
    EXPECT_NE(run.exit_code, 0) << flag;
    EXPECT_THAT(run.errors, HasSubstr(word));
  }
}

}  // namespace
}  // namespace baton::lab
