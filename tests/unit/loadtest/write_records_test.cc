// Requests as lines of JSON and CSV.
#include "services/loadtest/report/write_records.h"

#include <algorithm>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "services/loadtest/stream/request_record.h"

namespace baton::loadtest {
namespace {

using ::testing::HasSubstr;

std::vector<RequestRecord> Two() {
  RequestRecord answered;
  answered.index = 1;
  answered.request_id = "r-1";
  answered.code = absl::StatusCode::kOk;
  answered.sent = absl::Milliseconds(1500);
  answered.messages = {{.after_us = 12'500, .tokens = 1}, {.after_us = 22'500, .tokens = 2}};
  answered.usage.set_prompt_tokens(64);
  answered.usage.mutable_prefill_time()->set_nanos(2'000'000);
  RequestRecord failed;
  failed.index = 0;
  failed.request_id = "r-0";
  failed.code = absl::StatusCode::kUnavailable;
  failed.reason = "NO_ENDPOINTS";
  failed.error = "nobody, \"really\"";
  return {answered, failed};
}

TEST(WriteRecordsTest, LinesOfJsonAreInTheOrderOfSending) {
  std::ostringstream out;
  WriteJsonLines(Two(), /*token_times=*/true, out);
  const std::vector<std::string> lines = absl::StrSplit(out.str(), '\n', absl::SkipEmpty());
  ASSERT_EQ(lines.size(), 2u);
  const auto failed = nlohmann::json::parse(lines[0]);
  EXPECT_EQ(failed["status"], "UNAVAILABLE");
  EXPECT_EQ(failed["reason"], "NO_ENDPOINTS");
  EXPECT_TRUE(failed["ttft_ms"].is_null());
  const auto answered = nlohmann::json::parse(lines[1]);
  EXPECT_EQ(answered["request_id"], "r-1");
  EXPECT_EQ(answered["sent_ms"], 1500.0);
  EXPECT_EQ(answered["ttft_ms"], 12.5);
  EXPECT_EQ(answered["tokens"], 3);
  EXPECT_EQ(answered["tpot_ms"], 5.0);
  EXPECT_EQ(answered["prompt_tokens"], 64);
  EXPECT_EQ(answered["server_prefill_ms"], 2.0);
  EXPECT_EQ(answered["messages"], nlohmann::json::parse("[[12.5, 1], [22.5, 2]]"));
}

TEST(WriteRecordsTest, CsvHasAsManyFieldsAsItsHeaderAndQuotes) {
  std::ostringstream out;
  WriteCsv(Two(), out);
  const std::vector<std::string> lines = absl::StrSplit(out.str(), "\r\n", absl::SkipEmpty());
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_TRUE(lines[0].starts_with("index,request_id,conversation,turn,scheduled_ms,"));
  EXPECT_THAT(lines[1], HasSubstr(",UNAVAILABLE,NO_ENDPOINTS,\"nobody, \"\"really\"\"\","));
  EXPECT_EQ(std::ranges::count(lines[0], ','), std::ranges::count(lines[2], ','));
}

TEST(WriteRecordsTest, BytesThatAreNoTextDoNoHarm) {
  std::vector<RequestRecord> records = Two();
  records[1].error = "\xff\xfe";
  std::ostringstream out;
  WriteJsonLines(records, /*token_times=*/false, out);
  WriteCsv(records, out);
  EXPECT_THAT(out.str(), HasSubstr("r-0"));
}

}  // namespace
}  // namespace baton::loadtest
