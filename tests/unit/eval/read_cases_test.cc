#include "common/eval/read_cases.h"

#include <zlib.h>

#include <fstream>
#include <ios>
#include <iterator>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "common/eval/case_list.h"
#include "common/eval/eval_case.h"
#include "tests/unit/checkpoint/temp_dir.h"

namespace baton::eval {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

const std::string kData = std::string(BATON_SOURCE_DIR) + "/tests/data/models/eval";

std::string Line(const std::string& id) {
  return R"({"id": ")" + id +
         R"(", "task": "vt", "length_bucket": 512, "messages": [{"role": "user", "content": "q"}],)" +
         R"( "answer": "a", "max_new_tokens": 4, "prompt_tokens": 9})" + "\n";
}

std::vector<std::string> Ids(const std::vector<EvalCase>& cases) {
  std::vector<std::string> ids;
  for (const EvalCase& eval_case : cases) {
    ids.push_back(eval_case.id);
  }
  return ids;
}

TEST(ReadCasesTest, ReadsEveryFieldOfALine) {
  const absl::StatusOr<EvalCase> parsed = ParseCase(Line("x"));
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->id, "x");
  EXPECT_EQ(parsed->task, "vt");
  EXPECT_EQ(parsed->length_bucket, 512);
  EXPECT_EQ(parsed->messages[0]["content"], "q");
  EXPECT_EQ(parsed->answer, "a");
  EXPECT_EQ(parsed->max_new_tokens, 4);
  EXPECT_EQ(parsed->prompt_tokens, 9);
}

TEST(ReadCasesTest, WrongFieldsAreNamed) {
  for (const char* field :
       {"id", "task", "length_bucket", "messages", "answer", "max_new_tokens", "prompt_tokens"}) {
    std::string line = Line("x");
    line[line.find("\"", line.find(field)) - 1] = '_';
    EXPECT_THAT(std::string(ParseCase(line).status().message()), HasSubstr(field));
  }
  EXPECT_FALSE(ParseCase("[]").ok());
  EXPECT_FALSE(ParseCase("{").ok());
}

TEST(ReadCasesTest, FoldersFilesAndGzipJoin) {
  const TempDir dir;
  dir.Write("b.jsonl", Line("b1") + "\n" + Line("b2"));
  dir.Write("notes.txt", "not cases");
  const std::string compressed = Line("a1");
  gzFile gz = gzopen(dir.File("a.jsonl.gz").c_str(), "wb");
  gzwrite(gz, compressed.data(), static_cast<unsigned>(compressed.size()));
  gzclose(gz);
  const TempDir other;
  other.Write("c.jsonl", Line("c1"));
  const auto cases = ReadCases(dir.path() + "," + other.File("c.jsonl"));
  ASSERT_TRUE(cases.ok()) << cases.status();
  EXPECT_THAT(Ids(*cases), ElementsAre("a1", "b1", "b2", "c1"));
}

TEST(ReadCasesTest, BadLinesAndRepeatedIdsAreNamed) {
  const TempDir dir;
  dir.Write("x.jsonl", Line("1") + "{\n");
  EXPECT_THAT(std::string(ReadCases(dir.File("x.jsonl")).status().message()),
              HasSubstr("x.jsonl line 2"));
  dir.Write("x.jsonl", Line("1") + Line("1"));
  EXPECT_THAT(std::string(ReadCases(dir.File("x.jsonl")).status().message()),
              HasSubstr("occurs twice"));
  EXPECT_EQ(ReadCases(dir.File("none.jsonl")).status().code(), absl::StatusCode::kNotFound);
  const TempDir empty;
  EXPECT_EQ(ReadCases(empty.path()).status().code(), absl::StatusCode::kNotFound);
}

TEST(ReadCasesTest, TruncatedGzipIsAnError) {
  const TempDir dir;
  std::ifstream source(kData + "/vt.long.jsonl.gz", std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(source)), {});
  dir.Write("x.jsonl.gz", bytes.substr(0, bytes.size() / 2));
  EXPECT_FALSE(ReadCases(dir.File("x.jsonl.gz")).ok());
}

TEST(ReadCasesTest, ShippedSetsHold972Cases) {
  const auto cases = ReadCases(kData);
  ASSERT_TRUE(cases.ok()) << cases.status();
  EXPECT_EQ(cases->size(), 972u);
}

TEST(CaseListTest, SelectsInTheOrderOfTheList) {
  const TempDir dir;
  dir.Write("x.jsonl", Line("1") + Line("2") + Line("3"));
  dir.Write("list.txt", "# a comment\n3\n\n1 \n");
  const auto ids = ReadCaseList(dir.File("list.txt"));
  ASSERT_TRUE(ids.ok()) << ids.status();
  const auto cases = ReadCases(dir.File("x.jsonl"));
  EXPECT_THAT(Ids(*SelectCases(*cases, *ids)), ElementsAre("3", "1"));
  EXPECT_THAT(std::string(SelectCases(*cases, {"9"}).status().message()), HasSubstr("9"));
  dir.Write("list.txt", "1\n1\n");
  EXPECT_FALSE(ReadCaseList(dir.File("list.txt")).ok());
}

}  // namespace
}  // namespace baton::eval
