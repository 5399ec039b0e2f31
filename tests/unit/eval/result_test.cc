#include <fstream>
#include <ios>
#include <iterator>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "common/eval/eval_case.h"
#include "common/eval/progress_bar.h"
#include "common/eval/read_rows.h"
#include "common/eval/result_row.h"
#include "common/eval/result_table.h"
#include "common/eval/result_writer.h"
#include "tests/unit/checkpoint/temp_dir.h"

namespace baton::eval {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

ResultRow Row(const std::string& id, const std::string& task, int32_t length, bool correct) {
  ResultRow row;
  row.id = id;
  row.task = task;
  row.length_bucket = length;
  row.output = "out \"put\"\n\xc3\xa9";
  row.token_ids = {5, 0, 4095};
  row.correct = correct;
  row.prompt_tokens = 500;
  row.completion_tokens = 7;
  row.kv_logical_bytes = 1LL << 40;
  row.kv_wire_bytes = 2;
  row.kv_resident_bytes = 3;
  row.ttft_ms = 1.5;
  row.total_ms = 20.25;
  return row;
}

std::string FileText(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string((std::istreambuf_iterator<char>(file)), {});
}

TEST(ScoreTest, OnlyTheWholeAnswerIsCorrect) {
  EvalCase eval_case;
  eval_case.answer = "12 34";
  EXPECT_TRUE(IsCorrect(eval_case, "12 34"));
  for (const char* output : {"12 34 ", " 12 34", "12", "12 34 56", ""}) {
    EXPECT_FALSE(IsCorrect(eval_case, output)) << output;
  }
}

TEST(ResultRowTest, RoundTripsOnOneLine) {
  const ResultRow row = Row("a", "vt", 512, true);
  const std::string line = ToJsonLine(row);
  EXPECT_EQ(line.find('\n'), std::string::npos);
  EXPECT_EQ(*ParseResultRow(line), row);
}

TEST(ResultRowTest, RoundTripsPolicyAndItsCounts) {
  ResultRow row = Row("a", "vt", 512, true);
  row.kv = "quest:budget=0.25";
  row.attended_share = 0.125;
  row.kv_slot_bytes = 77;
  row.hit_share = 0.75;
  row.tier_tokens = {{1, 2, 3, 4}, {5, 6, 7, 8}};
  EXPECT_EQ(*ParseResultRow(ToJsonLine(row)), row);
}

TEST(ResultRowTest, RowsWithoutAPolicyAreOfDenseKv) {
  std::string line = ToJsonLine(Row("a", "vt", 512, true));
  const std::string kv = R"(,"kv":"dense")";
  const size_t begin = line.find(kv);
  ASSERT_NE(begin, std::string::npos);
  line.erase(begin, kv.size());
  EXPECT_EQ(*ParseResultRow(line), Row("a", "vt", 512, true));
}

TEST(ResultRowTest, OptionalFieldsOfAWrongTypeAreNamed) {
  ResultRow row = Row("a", "vt", 512, true);
  row.attended_share = 0.5;
  std::string line = ToJsonLine(row);
  line.replace(line.find(":0.5"), 4, ":\"x\"");
  EXPECT_THAT(std::string(ParseResultRow(line).status().message()), HasSubstr("attended_share"));
  row.tier_tokens = {{1, 2}};
  line = ToJsonLine(row);
  line.replace(line.find("[[1,2]]"), 7, "[[1,-2]]");
  EXPECT_THAT(std::string(ParseResultRow(line).status().message()), HasSubstr("tier_tokens"));
}

TEST(ResultRowTest, AnAnswerFillsWhatTheCaseSays) {
  EvalCase eval_case;
  eval_case.id = "a";
  eval_case.task = "vt";
  eval_case.length_bucket = 512;
  eval_case.answer = "42";
  const ResultRow row = AnsweredRow(eval_case, "42");
  EXPECT_EQ(row.id, "a");
  EXPECT_EQ(row.task, "vt");
  EXPECT_EQ(row.length_bucket, 512);
  EXPECT_EQ(row.output, "42");
  EXPECT_TRUE(row.correct);
  EXPECT_FALSE(AnsweredRow(eval_case, "4").correct);
}

TEST(ResultRowTest, MissingFieldIsNamed) {
  std::string line = ToJsonLine(Row("a", "vt", 512, true));
  line[line.find("kv_wire_bytes")] = '_';
  EXPECT_THAT(std::string(ParseResultRow(line).status().message()), HasSubstr("kv_wire_bytes"));
}

TEST(ResultWriterTest, ResumeKeepsWholeLinesAndDropsACutOne) {
  const TempDir dir;
  const std::string path = dir.File("out.jsonl");
  {
    const auto writer = ResultWriter::Open(path, /*resume=*/true);
    ASSERT_TRUE(writer.ok()) << writer.status();
    ASSERT_TRUE((*writer)->Append(Row("a", "vt", 512, true)).ok());
    ASSERT_TRUE((*writer)->Append(Row("b", "vt", 512, true)).ok());
  }
  const std::string whole = FileText(path);
  dir.Write("out.jsonl", whole.substr(0, whole.size() - 20));
  const auto writer = ResultWriter::Open(path, /*resume=*/true);
  ASSERT_TRUE(writer.ok()) << writer.status();
  EXPECT_TRUE((*writer)->Finished("a"));
  EXPECT_FALSE((*writer)->Finished("b"));
  ASSERT_TRUE((*writer)->Append(Row("b", "vt", 512, true)).ok());
  EXPECT_EQ(FileText(path), whole);
  EXPECT_EQ((*writer)->rows().size(), 2u);
}

TEST(ResultWriterTest, WithoutResumeTheFileStartsAgain) {
  const TempDir dir;
  dir.Write("out.jsonl", "old\n");
  const auto writer = ResultWriter::Open(dir.File("out.jsonl"), /*resume=*/false);
  ASSERT_TRUE(writer.ok());
  EXPECT_EQ(FileText(dir.File("out.jsonl")), "");
}

TEST(ResultWriterTest, ForeignFilesAndBadPathsAreRefused) {
  const TempDir dir;
  dir.Write("notes.txt", "my notes\n");
  EXPECT_THAT(std::string(ResultWriter::Open(dir.File("notes.txt"), true).status().message()),
              HasSubstr("line 1"));
  EXPECT_EQ(FileText(dir.File("notes.txt")), "my notes\n");
  EXPECT_EQ(ResultWriter::Open(dir.File("no/such/dir"), false).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST(ResultWriterTest, PoliciesOfACaseFinishOneByOne) {
  const TempDir dir;
  const auto writer = ResultWriter::Open(dir.File("out.jsonl"), /*resume=*/false);
  ASSERT_TRUE(writer.ok());
  ResultRow row = Row("a", "vt", 512, true);
  row.kv = "int4";
  ASSERT_TRUE((*writer)->Append(row).ok());
  EXPECT_TRUE((*writer)->Finished("a"));
  EXPECT_TRUE((*writer)->Finished("a", "int4"));
  EXPECT_FALSE((*writer)->Finished("a", "dense"));
  EXPECT_FALSE((*writer)->Finished("b", "int4"));
}

TEST(ReadRowsTest, JoinsFilesAndCountsEqualAnswersOnce) {
  const TempDir dir;
  ResultRow int4 = Row("a", "vt", 512, false);
  int4.kv = "int4";
  ResultRow again = Row("a", "vt", 512, true);
  again.total_ms = 99;
  dir.Write("1", ToJsonLine(Row("a", "vt", 512, true)) + "\n" + ToJsonLine(int4) + "\n");
  dir.Write("2", ToJsonLine(again) + "\n" + ToJsonLine(Row("b", "vt", 512, true)) + "\n");
  const auto rows = ReadRows(dir.File("1") + "," + dir.File("2"));
  ASSERT_TRUE(rows.ok()) << rows.status();
  EXPECT_THAT(*rows, ElementsAre(Row("a", "vt", 512, true), int4, Row("b", "vt", 512, true)));
}

TEST(ReadRowsTest, WhatIsWrongIsNamed) {
  const TempDir dir;
  ResultRow other = Row("a", "vt", 512, true);
  other.token_ids = {1};
  dir.Write("1", ToJsonLine(Row("a", "vt", 512, true)) + "\n");
  dir.Write("2", ToJsonLine(other) + "\n");
  const std::string message(ReadRows(dir.File("1") + "," + dir.File("2")).status().message());
  EXPECT_THAT(message, HasSubstr("2 line 1"));
  EXPECT_THAT(message, HasSubstr("another answer"));
  dir.Write("3", "{}\n");
  EXPECT_THAT(std::string(ReadRows(dir.File("3")).status().message()), HasSubstr("3 line 1"));
  EXPECT_EQ(ReadRows(dir.File("none")).status().code(), absl::StatusCode::kNotFound);
}

TEST(ResultTableTest, CountsByTaskAndLength) {
  const std::string table = FormatTable({Row("1", "vt", 512, true),
                                         Row("2", "vt", 512, false),
                                         Row("3", "vt", 2048, true),
                                         Row("4", "sort", 512, true)});
  std::vector<std::string> lines;
  for (size_t begin = 0; begin < table.size();) {
    const size_t end = table.find('\n', begin);
    lines.push_back(table.substr(begin, end - begin));
    begin = end + 1;
  }
  EXPECT_THAT(lines,
              ElementsAre("task        512      2048       all",
                          "sort        1/1         -       1/1",
                          "vt          1/2       1/1       2/3",
                          "total       2/3       1/1       3/4"));
}

TEST(ProgressBarTest, FillsWithTheShareDone) {
  EXPECT_EQ(ProgressLine(5, 10, 4),
            "[" + std::string(20, '#') + std::string(20, '.') + "] 5/10 cases, 4 correct");
  EXPECT_EQ(ProgressLine(0, 0, 0), "[" + std::string(40, '#') + "] 0/0 cases, 0 correct");
}

}  // namespace
}  // namespace baton::eval
