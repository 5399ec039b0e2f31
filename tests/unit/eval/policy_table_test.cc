#include "common/eval/policy_table.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "common/eval/result_row.h"

namespace baton::eval {
namespace {

ResultRow Row(const std::string& kv,
              const std::string& id,
              const std::string& task,
              int32_t length,
              bool correct) {
  ResultRow row;
  row.kv = kv;
  row.id = id;
  row.task = task;
  row.length_bucket = length;
  row.correct = correct;
  row.prompt_tokens = length - 12;
  row.kv_logical_bytes = row.prompt_tokens * 100;
  row.kv_resident_bytes = row.prompt_tokens * 110;
  return row;
}

TEST(PolicyTableTest, FormatsTotalsAndTasks) {
  std::vector<ResultRow> rows = {Row("dense", "1", "vt", 512, true),
                                 Row("dense", "2", "vt", 512, true),
                                 Row("dense", "3", "sort", 512, false),
                                 Row("dense", "4", "vt", 2048, true)};
  for (size_t i = 0; i < 3; ++i) {
    ResultRow row = Row("quest:budget=0.25", rows[i].id, rows[i].task, 512, i == 2);
    row.kv_resident_bytes = row.prompt_tokens * 25;
    row.kv_slot_bytes = row.prompt_tokens * 5;
    row.kv_wire_bytes = row.prompt_tokens * 50;
    row.hit_share = 0.6;
    if (i > 0) {
      row.attended_share = 0.2 + 0.1 * static_cast<double>(i);
    }
    rows.push_back(row);
  }
  rows.push_back(Row("int4", "9", "chain", 2048, true));
  EXPECT_EQ(
      FormatPolicyTable(rows),
      "| kv | correct | % | net loss | worst task | bytes/token | % of bf16 | wire % | slot "
      "bytes/token | attended % | hits % |\n"
      "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n"
      "| `dense` | 3/4 | 75.0 | - | - | 110 | 110.0 | - | - | - | - |\n"
      "| `quest:budget=0.25` | 1/3 | 33.3 | 1 (2 - 1) | 2 | 25 | 25.0 | 50.0 | 5 | 35.0 | 60.0 |\n"
      "| `int4` | 1/1 | 100.0 | - | - | 110 | 110.0 | - | - | - | - |\n"
      "\n"
      "By prompt tokens, 512 / 2048:\n"
      "\n"
      "| kv | correct | % of bf16 | wire % | attended % |\n"
      "| --- | --- | --- | --- | --- |\n"
      "| `dense` | 2/3 / 1/1 | 110.0 / 110.0 | - / - | - / - |\n"
      "| `quest:budget=0.25` | 1/3 / 0/0 | 25.0 / - | 50.0 / - | 35.0 / - |\n"
      "| `int4` | 0/0 / 1/1 | - / 110.0 | - / - | - / - |\n"
      "\n"
      "Correct answers in % at 512 / 2048 prompt tokens:\n"
      "\n"
      "| kv | chain | sort | vt | all |\n"
      "| --- | --- | --- | --- | --- |\n"
      "| `dense` | - / - | 0 / - | 100 / 100 | 67 / 100 |\n"
      "| `quest:budget=0.25` | - / - | 100 / - | 0 / - | 33 / - |\n"
      "| `int4` | - / 100 | - / - | - / - | - / 100 |\n");
}

TEST(PolicyTableTest, FormatsTiersByLayer) {
  ResultRow first = Row("diffkv", "1", "vt", 112, true);  // 100 tokens
  first.tier_tokens = {{50, 50, 30, 70}, {10, 80, 20, 60}};
  ResultRow second = Row("diffkv", "2", "vt", 112, true);
  second.tier_tokens = {{70, 30, 50, 50}, {30, 70, 40, 60}};
  const std::string table = FormatPolicyTable({Row("dense", "1", "vt", 112, true), first, second});
  EXPECT_TRUE(table.ends_with(
      "High / low / dropped prompt tokens in % (of a KV head's high tokens, 5th-95th percentile):\n"
      "\n"
      "| kv | layer 0 | layer 1 |\n"
      "| --- | --- | --- |\n"
      "| `diffkv` | 50.0 / 50.0 / 0.0 (30.0-50.0) | 25.0 / 67.5 / 7.5 (10.0-30.0) |\n"))
      << table;
}

TEST(PolicyTableTest, WithoutRowsThereIsOnlyTheHead) {
  const std::string table = FormatPolicyTable({});
  EXPECT_EQ(std::count(table.begin(), table.end(), '\n'), 2);
}

}  // namespace
}  // namespace baton::eval
