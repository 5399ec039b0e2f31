// The figures of a run against records whose figures are known.
#include "services/loadtest/measure/summary.h"

#include <string>
#include <vector>

#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "services/loadtest/measure/run_result.h"
#include "services/loadtest/measure/slo.h"
#include "services/loadtest/measure/timeline.h"
#include "services/loadtest/report/console_table.h"
#include "services/loadtest/stream/request_record.h"

namespace baton::loadtest {
namespace {

using ::testing::HasSubstr;

// Request i is sent at i x 100 ms; its first token comes after 10 x (i + 1) ms, four more follow
// 20 ms apart.
RequestRecord Answered(int64_t i) {
  RequestRecord record;
  record.index = i;
  record.code = absl::StatusCode::kOk;
  record.scheduled = record.allowed = record.sent = i * absl::Milliseconds(100);
  for (int64_t token = 0; token < 5; ++token) {
    record.messages.push_back(
        {.after_us = static_cast<uint32_t>(10'000 * (i + 1) + 20'000 * token), .tokens = 1});
  }
  record.finished_us = record.messages.back().after_us;
  record.end = record.sent + absl::Microseconds(record.messages.back().after_us);
  record.max_tokens = 5;
  record.ignore_eos = true;
  record.kv_policy = "dense";
  record.usage.set_prompt_tokens(100);
  record.usage.set_kv_logical_bytes(1000);
  record.usage.set_kv_wire_bytes(600);
  record.usage.mutable_queue_time()->set_nanos(3'000'000);
  return record;
}

RequestRecord Failed(int64_t i, Fault fault) {
  RequestRecord record = Answered(i);
  record.code =
      fault == Fault::kCancel ? absl::StatusCode::kCancelled : absl::StatusCode::kUnavailable;
  record.reason = fault == Fault::kCancel ? "" : "NO_ENDPOINTS";
  record.fault = fault;
  return record;
}

RunResult TenRequests() {
  RunResult run;
  for (int64_t i = 0; i < 10; ++i) {
    run.records.push_back(Answered(i));
  }
  run.slos = *ParseSlos("50/20,1000/19");
  return run;
}

TEST(SummaryTest, LatenciesAreThoseOfTheRecords) {
  const auto summary = Summarize(TenRequests());
  const auto& latency = summary["latency_ms"];
  EXPECT_EQ(latency["ttft"]["count"], 10);
  EXPECT_NEAR(latency["ttft"]["mean"].get<double>(), 55.0, 1e-4);
  EXPECT_NEAR(latency["ttft"]["p50"].get<double>(), 55.0, 1e-4);
  EXPECT_NEAR(latency["ttft"]["p90"].get<double>(), 91.0, 1e-4);
  EXPECT_EQ(latency["itl"]["count"], 40);
  EXPECT_NEAR(latency["itl"]["p99"].get<double>(), 20.0, 1e-4);
  EXPECT_NEAR(latency["tpot"]["mean"].get<double>(), 20.0, 1e-4);
  EXPECT_NEAR(latency["e2e"]["max"].get<double>(), 180.0, 1e-4);
  EXPECT_NEAR(latency["server_queue"]["mean"].get<double>(), 3.0, 1e-4);
}

TEST(SummaryTest, ThroughputAndGoodputAreOverTheSameTime) {
  const auto summary = Summarize(TenRequests());
  EXPECT_NEAR(summary["duration_s"].get<double>(), 1.08, 1e-9);
  EXPECT_NEAR(summary["throughput"]["requests_per_s"].get<double>(), 10 / 1.08, 1e-9);
  EXPECT_NEAR(summary["throughput"]["output_tokens_per_s"].get<double>(), 50 / 1.08, 1e-9);
  EXPECT_EQ(summary["throughput"]["prompt_tokens"], 1000);
  const auto& goodput = summary["goodput"];
  EXPECT_EQ(goodput[0]["good"], 5);
  EXPECT_NEAR(goodput[0]["share"].get<double>(), 0.5, 1e-9);
  EXPECT_NEAR(goodput[0]["requests_per_s"].get<double>(), 5 / 1.08, 1e-9);
  EXPECT_EQ(goodput[1]["good"], 0) << "TPOT is 20 ms";
}

TEST(SummaryTest, RequestsThatWereNotSentAreNotGood) {
  RunResult run = TenRequests();
  run.unsent.assign(10, absl::Milliseconds(700));
  EXPECT_EQ(Summarize(run)["requests"]["unsent"], 10);
  EXPECT_NEAR(Summarize(run)["goodput"][0]["share"].get<double>(), 0.25, 1e-9);
}

TEST(SummaryTest, FailuresCountAndInjectedFaultsStayApart) {
  RunResult run = TenRequests();
  run.records.push_back(Failed(10, Fault::kNone));
  run.records.push_back(Failed(11, Fault::kNone));
  run.records.push_back(Failed(12, Fault::kCancel));
  RequestRecord slow = Answered(13);
  slow.fault = Fault::kSlowReader;
  run.records.push_back(slow);
  const auto summary = Summarize(run);
  const auto& requests = summary["requests"];
  EXPECT_EQ(requests["sent"], 14);
  EXPECT_EQ(requests["succeeded"], 11);
  EXPECT_EQ(requests["failed"], 2);
  EXPECT_EQ(requests["cancelled_on_purpose"], 1);
  EXPECT_EQ(requests["read_slowly"], 1);
  EXPECT_EQ(summary["latency_ms"]["ttft"]["count"], 10) << "neither failed nor disturbed ones";
  EXPECT_EQ(summary["goodput"][0]["asked"], 12);
  ASSERT_EQ(summary["errors"].size(), 2u);
  EXPECT_EQ(summary["errors"][0]["status"], "CANCELLED (on purpose)");
  EXPECT_EQ(summary["errors"][1]["status"], "UNAVAILABLE NO_ENDPOINTS");
  EXPECT_EQ(summary["errors"][1]["count"], 2);
}

TEST(SummaryTest, TheWarmUpIsLeftOut) {
  RunResult run = TenRequests();
  run.warmup = absl::Milliseconds(500);
  run.unsent = {absl::Milliseconds(499), absl::Milliseconds(500)};
  const auto summary = Summarize(run);
  EXPECT_EQ(summary["requests"]["unsent"], 1);
  EXPECT_EQ(summary["goodput"][0]["asked"], 6);
  EXPECT_EQ(summary["requests"]["sent"], 5);
  EXPECT_EQ(summary["requests"]["warmup"], 5);
  EXPECT_NEAR(summary["duration_s"].get<double>(), 0.58, 1e-9);
  EXPECT_NEAR(summary["latency_ms"]["ttft"]["min"].get<double>(), 60.0, 1e-4);
}

TEST(SummaryTest, ARequestBelongsToTheStageInWhichItWasDue) {
  RunResult run = TenRequests();
  run.stages = RateProfile::Parse("400ms@10,600ms@10..20,1s@0")->stages();
  run.records.push_back(Failed(9, Fault::kNone));
  const auto stages = Summarize(run)["stages"];
  ASSERT_EQ(stages.size(), 3u);
  EXPECT_EQ(stages[0]["due"], 4);
  EXPECT_NEAR(stages[0]["ttft_p50"].get<double>(), 25.0, 1e-4);
  EXPECT_EQ(stages[0]["good"]["50/20"], 1.0);
  EXPECT_NEAR(stages[1]["from_s"].get<double>(), 0.4, 1e-9);
  EXPECT_EQ(stages[1]["due"], 7);
  EXPECT_EQ(stages[1]["failed"], 1);
  EXPECT_NEAR(stages[1]["good"]["50/20"].get<double>(), 1.0 / 7, 1e-9);
  EXPECT_EQ(stages[2]["due"], 0);
}

TEST(SummaryTest, StagesLeaveOutTheWarmUp) {
  RunResult run = TenRequests();
  run.stages = RateProfile::Parse("400ms@10,600ms@10")->stages();
  run.warmup = absl::Milliseconds(200);
  run.unsent = {absl::Milliseconds(199), absl::Milliseconds(200)};
  const auto stages = Summarize(run)["stages"];
  EXPECT_EQ(stages[0]["due"], 3);
  EXPECT_EQ(stages[0]["succeeded"], 2);
  EXPECT_NEAR(stages[0]["ttft_p50"].get<double>(), 35.0, 1e-4);
  EXPECT_EQ(stages[1]["due"], 6);
}

TEST(SummaryTest, WhatWasHeldBackIsDueInItsStageAndNeverGood) {
  RunResult run = TenRequests();
  run.stages = RateProfile::Parse("1s@10,1s@10")->stages();
  run.records.push_back(Failed(9, Fault::kNone));
  run.unsent = {absl::Milliseconds(999), absl::Seconds(1), absl::Milliseconds(1500)};
  const auto summary = Summarize(run);
  const auto& stages = summary["stages"];
  EXPECT_EQ(stages[0]["due"], 12);
  EXPECT_EQ(stages[0]["succeeded"], 10);
  EXPECT_EQ(stages[0]["failed"], 1);
  EXPECT_EQ(stages[0]["unsent"], 1);
  EXPECT_NEAR(stages[0]["good"]["50/20"].get<double>(), 5.0 / 12, 1e-9);
  EXPECT_EQ(stages[1]["due"], 2);
  EXPECT_EQ(stages[1]["failed"], 0);
  EXPECT_EQ(stages[1]["unsent"], 2);
  EXPECT_EQ(stages[1]["good"]["50/20"], 0.0);
  EXPECT_THAT(ConsoleTable(summary), HasSubstr("12 due, 1 failed, 1 held back;"));
}

TEST(SummaryTest, KvBytesAreSummedByPolicy) {
  RunResult run = TenRequests();
  run.records[3].kv_policy = "fp8";
  const auto summary = Summarize(run);
  ASSERT_EQ(summary["kv"].size(), 2u);
  EXPECT_EQ(summary["kv"][0]["policy"], "dense");
  EXPECT_EQ(summary["kv"][0]["logical_bytes"], 9000);
  EXPECT_EQ(summary["kv"][0]["wire_bytes"], 5400);
  EXPECT_EQ(summary["kv"][1]["requests"], 1);
}

TEST(SummaryTest, ARunWithoutRequestsHasASummaryToo) {
  const auto summary = Summarize(RunResult());
  EXPECT_EQ(summary["requests"]["sent"], 0);
  EXPECT_EQ(summary["duration_s"], 0.0);
  EXPECT_THAT(ConsoleTable(summary), HasSubstr("0 requests"));
}

TEST(SummaryTest, SaysWhenTheLoadTestWasTheBottleneck) {
  RunResult run = TenRequests();
  run.self.wall = absl::Seconds(10);
  run.self.cores = 2;
  run.self.cpu = absl::Seconds(15);
  EXPECT_THAT(ConsoleTable(Summarize(run)), Not(HasSubstr("WARNING")));
  run.self.cpu = absl::Seconds(17);
  EXPECT_THAT(ConsoleTable(Summarize(run)), HasSubstr("WARNING: the load test used 1.70 of the 2"));
  run.self.cpu = absl::Seconds(1);
  run.self.lateness_ms.Add(11);
  EXPECT_THAT(ConsoleTable(Summarize(run)), HasSubstr("WARNING: the load test sent requests late"));
}

TEST(TimelineTest, EveryRequestAndTokenIsInOneRow) {
  const RunResult run = TenRequests();
  const auto timeline = Timeline(run.records);
  EXPECT_EQ(timeline["bucket_s"], 0.1);
  int64_t sent = 0;
  int64_t ended = 0;
  int64_t tokens = 0;
  for (const auto& row : timeline["rows"]) {
    sent += row["sent"].get<int64_t>();
    ended += row["ended"].get<int64_t>();
    tokens += row["tokens"].get<int64_t>();
  }
  EXPECT_EQ(sent, 10);
  EXPECT_EQ(ended, 10);
  EXPECT_EQ(tokens, 50);
  EXPECT_EQ(MaxOpen(run.records), 2);
}

TEST(TimelineTest, DisturbedRequestsHaveTokensAndNoLatency) {
  RunResult run = TenRequests();
  for (RequestRecord& record : run.records) {
    record.fault = Fault::kSlowReader;
  }
  const auto timeline = Timeline(run.records);
  for (const auto& row : timeline["rows"]) {
    EXPECT_TRUE(row["ttft_p99"].is_null());
    EXPECT_TRUE(row["itl_p99"].is_null());
  }
  EXPECT_GT(timeline["rows"][0]["tokens"], 0);
}

TEST(TimelineTest, LongRunsGetLongerRows) {
  RunResult run = TenRequests();
  run.records[9].end = absl::Hours(30);
  EXPECT_LE(Timeline(run.records)["rows"].size(), 76u);
}

}  // namespace
}  // namespace baton::loadtest
