// Latencies of one request, and whether it was a good one.
#include "services/loadtest/measure/slo.h"

#include <vector>

#include "absl/time/time.h"
#include "gtest/gtest.h"

#include "services/loadtest/measure/request_figures.h"
#include "services/loadtest/stream/request_record.h"

namespace baton::loadtest {
namespace {

// Due at 1 s, sent 100 ms later; a first token after 200 ms, then one every 50 ms.
RequestRecord Answered(int tokens) {
  RequestRecord record;
  record.code = absl::StatusCode::kOk;
  record.scheduled = absl::Seconds(1);
  record.allowed = absl::Milliseconds(1090);
  record.sent = absl::Milliseconds(1100);
  for (int i = 0; i < tokens; ++i) {
    record.messages.push_back(
        {.after_us = static_cast<uint32_t>(200'000 + 50'000 * i), .tokens = 1});
  }
  record.finished_us = tokens == 0 ? 900'000 : record.messages.back().after_us;
  return record;
}

TEST(RequestFiguresTest, CountFromSendingAndFromTheSchedule) {
  const RequestRecord record = Answered(5);
  EXPECT_DOUBLE_EQ(TtftMs(record).value(), 200);
  EXPECT_DOUBLE_EQ(ScheduledTtftMs(record).value(), 300);
  EXPECT_DOUBLE_EQ(TpotMs(record).value(), 50);
  EXPECT_DOUBLE_EQ(LatencyMs(record).value(), 400);
  EXPECT_DOUBLE_EQ(ScheduledLatencyMs(record).value(), 500);
  EXPECT_DOUBLE_EQ(LatenessMs(record), 10);
}

TEST(RequestFiguresTest, AMessageOfSeveralTokensCountsThemAll) {
  RequestRecord record = Answered(2);
  record.messages[1].tokens = 10;
  EXPECT_EQ(TokenCount(record), 11);
  EXPECT_DOUBLE_EQ(TpotMs(record).value(), 5);
}

TEST(RequestFiguresTest, AnEmptyAnswerIsTimedByItsEnd) {
  RequestRecord record = Answered(0);
  EXPECT_DOUBLE_EQ(TtftMs(record).value(), 900);
  EXPECT_DOUBLE_EQ(LatencyMs(record).value(), 900);
  EXPECT_FALSE(TpotMs(record).has_value());
  EXPECT_FALSE(TpotMs(Answered(1)).has_value());
  record.finished_us.reset();
  EXPECT_FALSE(TtftMs(record).has_value());
  EXPECT_FALSE(LatencyMs(record).has_value());
}

TEST(RequestFiguresTest, TellsTruncatedFromShortAnswers) {
  RequestRecord record = Answered(3);
  record.max_tokens = 3;
  record.finish = inference::v1::FINISH_REASON_LENGTH;
  EXPECT_TRUE(IsTruncated(record));
  record.ignore_eos = true;
  EXPECT_FALSE(IsTruncated(record));
  EXPECT_FALSE(IsShort(record));
  record.max_tokens = 4;
  EXPECT_TRUE(IsShort(record));
}

TEST(SloTest, KnowsTheOperatingPointsAndOwnOnes) {
  const auto slos = ParseSlos("server,interactive,long-context,800/40");
  ASSERT_TRUE(slos.ok()) << slos.status();
  ASSERT_EQ(slos->size(), 4u);
  const double expected[4][2] = {{2000, 100}, {500, 30}, {1500, 30}, {800, 40}};
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(slos->at(i).ttft_ms, expected[i][0]) << i;
    EXPECT_EQ(slos->at(i).tpot_ms, expected[i][1]) << i;
  }
}

TEST(SloTest, RefusesWhatIsNoSlo) {
  for (const char* text : {"", "fast", "800", "800/", "0/5", "800/40/3", "a/b", "server,"}) {
    EXPECT_EQ(ParseSlos(text).status().code(), absl::StatusCode::kInvalidArgument) << text;
  }
}

TEST(SloTest, BothLimitsHaveToBeMetFromTheScheduleOn) {
  const RequestRecord record = Answered(5);
  EXPECT_TRUE(Meets(record, {.name = "", .ttft_ms = 300, .tpot_ms = 50}));
  EXPECT_FALSE(Meets(record, {.name = "", .ttft_ms = 299, .tpot_ms = 50}));
  EXPECT_FALSE(Meets(record, {.name = "", .ttft_ms = 300, .tpot_ms = 49}));
}

TEST(SloTest, OneTokenHasNoTpotAndAFailedRequestIsNeverGood) {
  const Slo slo{.name = "", .ttft_ms = 1000, .tpot_ms = 1};
  EXPECT_TRUE(Meets(Answered(1), slo));
  EXPECT_TRUE(Meets(Answered(0), slo));
  RequestRecord failed = Answered(1);
  failed.code = absl::StatusCode::kUnavailable;
  EXPECT_FALSE(Meets(failed, slo));
}

}  // namespace
}  // namespace baton::loadtest
