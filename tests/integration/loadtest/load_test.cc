// Whole loads against a mock: what is sent when, what is written down, and what faults do. Nothing
// here is decided by how long something took, only by what must not happen earlier.
#include <algorithm>
#include <fstream>
#include <map>
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "spdlog/sinks/ostream_sink.h"
#include "spdlog/spdlog.h"

#include "services/loadtest/execute.h"
#include "services/loadtest/load_options.h"
#include "services/loadtest/measure/request_figures.h"
#include "services/loadtest/measure/run_result.h"
#include "services/loadtest/measure/slo.h"
#include "services/loadtest/measure/summary.h"
#include "services/loadtest/measure/timeline.h"
#include "services/loadtest/stream/request_record.h"
#include "tests/support/mock_router.h"

namespace baton::loadtest {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::MockRouter;
using ::testing::Pair;

LoadOptions Options(const MockRouter& router) {
  LoadOptions options;
  options.router = router.address();
  options.arrivals.rate = 200;
  options.arrivals.process = "constant";
  options.workload.input = "16";
  options.workload.output = "8";
  options.driver.max_requests = 40;
  options.driver.drain = absl::Seconds(30);
  options.slos = *ParseSlos("server");
  return options;
}

RunResult RunOf(const LoadOptions& options) {
  absl::StatusOr<RunResult> run = Execute(options, nullptr);
  EXPECT_TRUE(run.ok()) << run.status();
  return run.ok() ? *std::move(run) : RunResult();
}

std::map<absl::StatusCode, int> Codes(const RunResult& run) {
  std::map<absl::StatusCode, int> codes;
  for (const RequestRecord& record : run.records) {
    ++codes[record.code];
  }
  return codes;
}

TEST(LoadTest, AnOpenLoopSendsOnItsScheduleAndRecordsEveryToken) {
  const MockRouter router({});
  const RunResult run = RunOf(Options(router));
  ASSERT_EQ(run.records.size(), 40u);
  std::set<int64_t> indices;
  for (const RequestRecord& record : run.records) {
    indices.insert(record.index);
    EXPECT_TRUE(record.ok()) << record.error;
    EXPECT_NEAR(absl::ToDoubleMilliseconds(record.scheduled),
                5.0 * static_cast<double>(record.index),
                1e-6);
    EXPECT_GE(record.sent, record.scheduled);
    EXPECT_GE(record.end, record.sent);
    EXPECT_EQ(TokenCount(record), 8);
    EXPECT_TRUE(std::ranges::is_sorted(record.messages, {}, &TokenMessage::after_us));
    EXPECT_EQ(record.usage.prompt_tokens(), 16u);
    EXPECT_EQ(record.usage.completion_tokens(), 8u);
    EXPECT_EQ(record.finish, inference::v1::FINISH_REASON_LENGTH);
    EXPECT_EQ(record.kv_policy, "dense");
  }
  EXPECT_EQ(indices.size(), 40u);
  const auto requests = router.requests();
  ASSERT_EQ(requests.size(), 40u);
  EXPECT_EQ(requests.front().token_ids().ids_size(), 16);
  EXPECT_TRUE(requests.front().session_id().empty());
}

TEST(LoadTest, AClosedLoopNeverExceedsItsConcurrency) {
  const MockRouter router({.first_token = absl::Milliseconds(2)});
  LoadOptions options = Options(router);
  options.arrivals.rate = 0;
  options.driver.concurrency = 5;
  options.driver.max_requests = 100;
  const RunResult run = RunOf(options);
  ASSERT_EQ(run.records.size(), 100u);
  EXPECT_EQ(MaxOpen(run.records), 5);
  // A request is due when the one before it in its slot ended.
  std::multiset<absl::Duration> ends;
  for (const RequestRecord& record : run.records) {
    ends.insert(record.end);
  }
  for (const RequestRecord& record : run.records) {
    EXPECT_TRUE(record.index < 5 ? record.scheduled == absl::ZeroDuration()
                                 : ends.contains(record.scheduled));
  }
}

TEST(LoadTest, WhatALimitHoldsBackShowsFromTheScheduledTimeOn) {
  const MockRouter router({.first_token = absl::Milliseconds(20)});
  LoadOptions options = Options(router);
  options.driver.concurrency = 1;
  options.driver.max_requests = 10;
  const RunResult run = RunOf(options);
  ASSERT_EQ(run.records.size(), 10u);
  EXPECT_EQ(MaxOpen(run.records), 1);
  for (const RequestRecord& record : run.records) {
    // Nine answers of at least 20 ms come before the last one, which was due after 45 ms.
    EXPECT_GE(ScheduledTtftMs(record).value(),
              20.0 * static_cast<double>(record.index + 1) -
                  5.0 * static_cast<double>(record.index) - 1e-3);
    EXPECT_GE(record.allowed, record.scheduled);
  }
}

// An arrival every 5 ms for 490 ms, 98 in all, one request open at a time.
LoadOptions HeldBack(const MockRouter& router) {
  LoadOptions options = Options(router);
  options.driver.concurrency = 1;
  options.driver.max_requests = 0;
  options.driver.duration = absl::Milliseconds(490);
  return options;
}

TEST(LoadTest, ArrivalsThatWereNeverSentAreCounted) {
  const MockRouter router({.first_token = absl::Milliseconds(50)});
  const RunResult run = RunOf(HeldBack(router));
  // 0, 5, ..., 485 ms; nothing is due any more at the end itself.
  ASSERT_LE(run.records.size(), 10u);
  ASSERT_EQ(run.records.size() + run.unsent.size(), 98u);
  EXPECT_EQ(run.unsent.back(), absl::Milliseconds(485));
  EXPECT_EQ(Summarize(run)["goodput"][0]["asked"], 98);
}

TEST(LoadTest, NoMoreArrivalsAreHeldBackThanTheNumberOfRequestsLeaves) {
  const MockRouter router({.first_token = absl::Milliseconds(50)});
  LoadOptions options = HeldBack(router);
  options.driver.max_requests = 30;
  const RunResult run = RunOf(options);
  ASSERT_LE(run.records.size(), 10u);
  ASSERT_EQ(run.records.size() + run.unsent.size(), 30u);
  EXPECT_EQ(run.unsent.back(), absl::Milliseconds(145));
}

TEST(LoadTest, ArrivalsWithoutAConversationAreNotHeldBack) {
  const MockRouter router({.first_token = absl::Milliseconds(50)});
  LoadOptions options = HeldBack(router);
  options.workload.sharegpt = ::testing::TempDir() + "loadtest_held_back.jsonl";
  {
    std::ofstream file(options.workload.sharegpt);
    for (int i = 0; i < 20; ++i) {
      file << R"({"conversations": [{"from": "human", "value": "a"}]})" << "\n";
    }
  }
  const RunResult run = RunOf(options);
  EXPECT_LE(run.records.size(), 10u);
  EXPECT_EQ(run.records.size() + run.unsent.size(), 20u);
}

TEST(LoadTest, TurnsThatWereDueAndNeverSentAreHeldBackToo) {
  const MockRouter router({.first_token = absl::Milliseconds(50)});
  LoadOptions options = HeldBack(router);
  options.workload.turns = 2;
  const RunResult run = RunOf(options);
  // 98 arrivals, and a second turn of each that was answered in time.
  const auto second_turns = std::ranges::count_if(run.records, [&](const RequestRecord& record) {
    return record.turn == 0 && record.ok() && record.end < options.driver.duration;
  });
  EXPECT_EQ(run.records.size() + run.unsent.size(), 98u + static_cast<size_t>(second_turns));
  EXPECT_TRUE(std::ranges::is_sorted(run.unsent));
}

TEST(LoadTest, ChatsWithoutATurnToSendAreLeftOutWithOneWarning) {
  const MockRouter router({});
  LoadOptions options = Options(router);
  options.workload.sharegpt = ::testing::TempDir() + "loadtest_left_out.jsonl";
  std::ofstream(options.workload.sharegpt)
      << R"({"conversations": [{"from": "human", "value": "a"}]}
{"conversations": []}
{"conversations": [{"from": "gpt", "value": "b"}]}
)";
  const std::shared_ptr<spdlog::logger> logger = spdlog::default_logger();
  std::ostringstream log;
  spdlog::set_default_logger(std::make_shared<spdlog::logger>(
      "captured", std::make_shared<spdlog::sinks::ostream_sink_mt>(log)));
  const RunResult run = RunOf(options);
  spdlog::set_default_logger(logger);
  EXPECT_EQ(run.records.size(), 1u);
  const std::vector<std::string> lines = absl::StrSplit(log.str(), '\n', absl::SkipEmpty());
  EXPECT_THAT(lines, ElementsAre(HasSubstr("loadtest_left_out.jsonl: 2 of 3 conversations")));
}

TEST(LoadTest, ATraceIsReplayedAtItsTimesWithItsLengths) {
  const MockRouter router({});
  const std::string path = ::testing::TempDir() + "loadtest_replay.jsonl";
  std::ofstream(path)
      << R"({"timestamp": 1000, "input_length": 700, "output_length": 3, "hash_ids": [1, 2]}
{"timestamp": 1040, "input_length": 600, "output_length": 2, "hash_ids": [1, 3]}
{"timestamp": 1100, "input_length": 5, "output_length": 1}
)";
  LoadOptions options = Options(router);
  options.arrivals.rate = 0;
  options.arrivals.trace = path;
  options.arrivals.trace_speed = 2;
  options.driver.max_requests = 0;
  const RunResult run = RunOf(options);
  std::map<absl::Duration, std::pair<uint32_t, int64_t>> lengths;
  for (const RequestRecord& record : run.records) {
    lengths[record.scheduled] = {record.usage.prompt_tokens(), TokenCount(record)};
  }
  EXPECT_THAT(lengths,
              ElementsAre(Pair(absl::ZeroDuration(), Pair(700, 3)),
                          Pair(absl::Milliseconds(20), Pair(600, 2)),
                          Pair(absl::Milliseconds(50), Pair(5, 1))));
}

TEST(LoadTest, TheSameSeedSendsTheSameRequests) {
  const auto prompts = [](uint64_t seed) {
    const MockRouter router({});
    LoadOptions options = Options(router);
    options.arrivals.process = "gamma";
    options.arrivals.burstiness = 0.5;
    options.workload.input = "uniform:1..50";
    options.workload.seed = seed;
    options.driver.max_requests = 20;
    options.driver.concurrency = 1;  // so that they come in the order of sending
    RunOf(options);
    std::vector<std::string> texts;
    for (const auto& request : router.requests()) {
      texts.push_back(request.token_ids().ShortDebugString());
    }
    return texts;
  };
  EXPECT_EQ(prompts(1), prompts(1));
  EXPECT_NE(prompts(1), prompts(2));
}

TEST(LoadTest, RefusedAndIncompleteStreamsAreFailures) {
  const MockRouter router({});
  LoadOptions options = Options(router);
  options.mix.kv_policies = "dense;refuse;incomplete";
  options.driver.max_requests = 90;
  const RunResult run = RunOf(options);
  const auto requests = router.requests();
  const auto asked = [&requests](const char* policy) {
    return std::ranges::count(requests, policy, &inference::v1::GenerateRequest::kv_policy);
  };
  auto codes = Codes(run);
  EXPECT_EQ(codes[absl::StatusCode::kOk], asked("dense"));
  EXPECT_EQ(codes[absl::StatusCode::kResourceExhausted], asked("refuse"));
  EXPECT_EQ(codes[absl::StatusCode::kDataLoss], asked("incomplete"));
  EXPECT_GT(asked("refuse"), 0);
  for (const RequestRecord& record : run.records) {
    if (record.code == absl::StatusCode::kResourceExhausted) {
      EXPECT_EQ(record.reason, "QUEUE_FULL");
      EXPECT_TRUE(record.messages.empty());
    } else if (record.code == absl::StatusCode::kDataLoss) {
      EXPECT_EQ(record.reason, "INCOMPLETE_STREAM");
      EXPECT_EQ(TokenCount(record), 8);
    }
  }
}

TEST(LoadTest, CancelsAreNoFailuresAndDeadlinesAre) {
  const MockRouter router(
      {.first_token = absl::Milliseconds(1), .token_interval = absl::Milliseconds(10)});
  LoadOptions options = Options(router);
  options.workload.output = "100000";
  options.mix.deadlines = "100ms";
  options.mix.cancel_share = 0.5;
  options.mix.cancel_within = absl::Milliseconds(20);
  const RunResult run = RunOf(options);
  int cancelled = 0;
  for (const RequestRecord& record : run.records) {
    if (record.fault == Fault::kCancel && record.code == absl::StatusCode::kCancelled) {
      ++cancelled;
    } else {
      // A cancel may come too late on a busy machine.
      EXPECT_EQ(record.code, absl::StatusCode::kDeadlineExceeded) << record.error;
      EXPECT_GE(record.end - record.sent, absl::Milliseconds(95));
    }
  }
  EXPECT_GT(cancelled, 0);
  const auto summary = Summarize(run);
  EXPECT_EQ(summary["requests"]["cancelled_on_purpose"], cancelled);
  EXPECT_EQ(summary["latency_ms"]["ttft"]["count"], 0);
}

TEST(LoadTest, SlowReadersPauseBeforeEveryMessage) {
  const MockRouter router({});
  LoadOptions options = Options(router);
  options.mix.slow_share = 1.0;
  options.mix.slow_delay = absl::Milliseconds(3);
  options.driver.max_requests = 5;
  const RunResult run = RunOf(options);
  ASSERT_EQ(run.records.size(), 5u);
  for (const RequestRecord& record : run.records) {
    EXPECT_TRUE(record.ok()) << record.error;
    // started, eight tokens, finished, usage and the end.
    EXPECT_GE(record.end - record.sent, absl::Milliseconds(36));
  }
}

TEST(LoadTest, TurnsFollowTheirAnswersInOneSession) {
  const MockRouter router({});
  LoadOptions options = Options(router);
  options.arrivals.rate = 0;
  options.driver.concurrency = 2;
  options.driver.sessions = true;
  options.driver.think_time = absl::Milliseconds(5);
  options.workload.turns = 3;
  options.driver.max_requests = 12;
  const RunResult run = RunOf(options);
  ASSERT_EQ(run.records.size(), 12u);
  EXPECT_LE(MaxOpen(run.records), 2);
  std::map<std::string, std::vector<int>> prompts_by_session;
  for (const auto& request : router.requests()) {
    prompts_by_session[request.session_id()].push_back(request.token_ids().ids_size());
  }
  EXPECT_GE(prompts_by_session.size(), 4u);
  for (const auto& [session, prompts] : prompts_by_session) {
    EXPECT_FALSE(session.empty());
    for (size_t turn = 0; turn < prompts.size(); ++turn) {
      EXPECT_EQ(prompts[turn], 16 + 24 * static_cast<int>(turn));
    }
  }
  std::map<std::pair<std::string, int>, absl::Duration> ends;
  for (const RequestRecord& record : run.records) {
    ends[{record.conversation, record.turn}] = record.end;
  }
  for (const RequestRecord& record : run.records) {
    if (record.turn > 0) {
      EXPECT_EQ(record.scheduled,
                ends.at({record.conversation, record.turn - 1}) + absl::Milliseconds(5));
    }
  }
}

TEST(LoadTest, WhatDoesNotEndIsAbandonedAfterTheDrain) {
  const MockRouter router({.token_interval = absl::Milliseconds(5)});
  LoadOptions options = Options(router);
  options.workload.output = "100000";
  options.driver.max_requests = 4;
  options.driver.drain = absl::Milliseconds(50);
  const RunResult run = RunOf(options);
  ASSERT_EQ(run.records.size(), 4u);
  for (const RequestRecord& record : run.records) {
    EXPECT_TRUE(record.abandoned);
    EXPECT_EQ(record.code, absl::StatusCode::kCancelled);
  }
  EXPECT_EQ(Summarize(run)["requests"]["failed"], 4);
}

TEST(LoadTest, ARouterThatIsNotThereIsAnError) {
  std::string address;
  {
    const MockRouter gone({});
    address = gone.address();
  }
  LoadOptions options;
  options.router = address;
  options.arrivals.rate = 1;
  options.driver.max_requests = 1;
  options.connect_timeout = absl::Milliseconds(300);
  const auto run = Execute(options, nullptr);
  EXPECT_EQ(run.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(run.status().message()), HasSubstr(address));
}

}  // namespace
}  // namespace baton::loadtest
