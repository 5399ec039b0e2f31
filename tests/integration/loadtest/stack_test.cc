// The built baton-loadtest against a local stack of the shipped model: the summary agrees with the
// records, and both agree with what the services counted.
#include <algorithm>
#include <csignal>
#include <fstream>
#include <ios>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

#include "tests/support/child_process.h"
#include "tests/support/local_stack.h"

namespace baton::testing {
namespace {

using nlohmann::json;

constexpr char kModel[] = BATON_SOURCE_DIR "/tests/data/models/tiny-llama-needle";
constexpr char kCases[] = BATON_SOURCE_DIR "/tests/data/models/eval/multiturn.jsonl";
using ::testing::HasSubstr;

class LoadtestProcessTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto stack = LocalStack::Start({.model = kModel});
    ASSERT_TRUE(stack.ok()) << stack.status();
    stack_ = *std::move(stack);
  }

  // Runs baton-loadtest with `arguments` and the stack's addresses; its exit code.
  int Run(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), BinaryPath("baton-loadtest"));
    arguments.push_back("--router=" + stack_->router_address());
    std::vector<std::string> urls;
    for (const Service* service : {&stack_->router(), &stack_->prefill(), &stack_->decode()}) {
      urls.push_back(absl::StrCat("http://127.0.0.1:", service->metrics_port, "/metrics"));
    }
    arguments.push_back("--metrics_urls=" + absl::StrJoin(urls, ","));
    auto process = ChildProcess::Start(arguments, Path("output"));
    EXPECT_TRUE(process.ok()) << process.status();
    const absl::StatusOr<int> code = process->Wait(absl::Seconds(100));
    EXPECT_TRUE(code.ok()) << code.status();
    return code.value_or(-1);
  }

  // Until the router has ended so many.
  void WaitForRequests(double count) {
    const absl::Time deadline = absl::Now() + absl::Seconds(60);
    double ended = 0;
    while (ended < count && absl::Now() < deadline) {
      absl::SleepFor(absl::Milliseconds(20));
      const auto samples = ScrapeMetrics(stack_->router().metrics_port);
      ended = samples.ok() ? Sample(*samples, "baton_requests_total") : 0;
    }
    EXPECT_GE(ended, count);
  }

  std::string Path(const std::string& name) const { return stack_->folder() + "/" + name; }
  std::string Text(const std::string& name) const {
    std::ifstream file(Path(name), std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  std::vector<json> Records() const {
    std::vector<json> records;
    for (const absl::string_view line : absl::StrSplit(Text("out/requests.jsonl"), '\n')) {
      if (!line.empty()) {
        records.push_back(json::parse(line));
      }
    }
    return records;
  }

  std::unique_ptr<LocalStack> stack_;
};

// Sum of the growth of a family's samples in a service's part of the summary.
double Growth(const json& service, const std::string& family, const std::string& label = "") {
  double sum = 0;
  for (const auto& [name, value] : service.at("growth").items()) {
    if ((name == family || name.starts_with(family + "{")) &&
        name.find(label) != std::string::npos) {
      sum += value.get<double>();
    }
  }
  return sum;
}

TEST_F(LoadtestProcessTest, SummaryRecordsAndServicesAgree) {
  ASSERT_EQ(Run({"run",
                 "--rate=20",
                 "--requests=40",
                 "--input=uniform:16..64",
                 "--output=uniform:4..16",
                 "--kv=dense@3;fp8@1",
                 "--token_times",
                 "--out=" + Path("out")}),
            0)
      << Text("output") << stack_->LogTails();
  const json summary = json::parse(Text("out/summary.json"));
  const std::vector<json> records = Records();
  ASSERT_EQ(records.size(), 40u);
  int64_t tokens = 0;
  int64_t prompt_tokens = 0;
  uint64_t logical = 0;
  std::vector<double> ttft;
  for (const json& record : records) {
    EXPECT_EQ(record["status"], "OK") << record;
    EXPECT_EQ(record["tokens"], record["completion_tokens"]);
    EXPECT_EQ(record["tokens"], record["max_tokens"]);
    tokens += record["tokens"].get<int64_t>();
    prompt_tokens += record["prompt_tokens"].get<int64_t>();
    logical += record["kv_logical_bytes"].get<uint64_t>();
    ttft.push_back(record["ttft_ms"].get<double>());
    EXPECT_LE(record["server_ttft_ms"].get<double>(), record["ttft_ms"].get<double>() + 0.001);
    int64_t timed = 0;
    for (const json& message : record["messages"]) {
      timed += message[1].get<int64_t>();
    }
    EXPECT_EQ(timed, record["tokens"]);
  }
  EXPECT_EQ(summary["requests"]["succeeded"], 40);
  EXPECT_EQ(summary["throughput"]["output_tokens"], tokens);
  EXPECT_EQ(summary["throughput"]["prompt_tokens"], prompt_tokens);
  std::ranges::sort(ttft);
  EXPECT_NEAR(summary["latency_ms"]["ttft"]["p50"].get<double>(), (ttft[19] + ttft[20]) / 2, 0.01);
  EXPECT_NEAR(summary["latency_ms"]["ttft"]["max"].get<double>(), ttft.back(), 0.01);

  const json& router = summary["services"][0];
  EXPECT_EQ(Growth(router, "baton_requests_total", "code=\"OK\""), 40);
  EXPECT_EQ(Growth(router, "baton_generation_tokens_total"), static_cast<double>(tokens));
  EXPECT_EQ(Growth(router, "baton_prompt_tokens_total"), static_cast<double>(prompt_tokens));
  EXPECT_EQ(Growth(router, "baton_time_to_first_token_seconds_count"), 40);
  const json& prefill = summary["services"][1];
  EXPECT_EQ(Growth(prefill, "baton_kv_logical_bytes_total"), static_cast<double>(logical));

  const std::vector<std::string> lines = absl::StrSplit(Text("out/requests.csv"), "\r\n");
  EXPECT_EQ(lines.size(), 42u) << "a header, 40 requests and the end of the last line";
  EXPECT_THAT(Text("out/report.html"), HasSubstr("</html>"));
  EXPECT_THAT(Text("output"), HasSubstr("40 requests in "));
}

TEST_F(LoadtestProcessTest, CasesAreScoredAndASignalEndsARunWithItsFigures) {
  ASSERT_EQ(Run({"run",
                 "--concurrency=3",
                 absl::StrCat("--cases=", kCases),
                 "--requests=9",
                 "--sessions",
                 "--out=" + Path("out")}),
            0)
      << Text("output") << stack_->LogTails();
  const json summary = json::parse(Text("out/summary.json"));
  EXPECT_EQ(summary["answers"]["scored"], 9);
  EXPECT_EQ(summary["answers"]["correct"], 9);

  auto process = ChildProcess::Start({BinaryPath("baton-loadtest"),
                                      "run",
                                      "--router=" + stack_->router_address(),
                                      "--concurrency=2",
                                      "--duration=10m",
                                      "--input=16",
                                      "--output=4",
                                      "--out=" + Path("stopped")},
                                     Path("stopped.log"));
  ASSERT_TRUE(process.ok()) << process.status();
  WaitForRequests(12);
  process->Signal(SIGINT);
  const absl::StatusOr<int> code = process->Wait(absl::Seconds(60));
  ASSERT_TRUE(code.ok()) << code.status();
  EXPECT_EQ(*code, 0) << Text("stopped.log");
  EXPECT_EQ(json::parse(Text("stopped/summary.json"))["requests"]["failed"], 0);
}

TEST_F(LoadtestProcessTest, AStalledWorkerShowsInTheFigures) {
  const int pid = stack_->decode().process->pid();
  std::ofstream(Path("hooks")) << "500ms kill -STOP " << pid << "\n1500ms kill -CONT " << pid
                               << "\n";
  ASSERT_EQ(Run({"run",
                 "--concurrency=2",
                 "--duration=2s",
                 "--input=32",
                 "--output=64",
                 "--hooks=" + Path("hooks"),
                 "--out=" + Path("out")}),
            0)
      << Text("output") << stack_->LogTails();
  const json summary = json::parse(Text("out/summary.json"));
  EXPECT_EQ(summary["requests"]["failed"], 0) << summary["errors"];
  EXPECT_GE(summary["latency_ms"]["e2e"]["max"].get<double>(), 900.0);
  ASSERT_EQ(summary["hooks"].size(), 2u);
  EXPECT_EQ(summary["hooks"][0]["result"], "exit 0");
  EXPECT_THAT(Text("out/report.html"), HasSubstr(absl::StrCat("kill -STOP ", pid)));
}

TEST_F(LoadtestProcessTest, SearchAndReportWriteTheirFiles) {
  ASSERT_EQ(Run({"search",
                 "--slo=server",
                 "--min_rate=10",
                 "--max_rate=20",
                 "--duration=500ms",
                 "--input=16",
                 "--output=4",
                 "--out=" + Path("search")}),
            0)
      << Text("output") << stack_->LogTails();
  const json found = json::parse(Text("search/search.json"));
  EXPECT_GE(found["probes"].size(), 1u);
  EXPECT_EQ(found["probes"][0]["rate"], 10.0);
  EXPECT_EQ(found["results"].size(), 2u);
  EXPECT_THAT(Text("output"), HasSubstr("maximum goodput, server, >= 99 % good: "));

  for (const char* name : {"first", "second"}) {
    ASSERT_EQ(Run({"run",
                   "--rate=20",
                   "--requests=5",
                   "--input=16",
                   "--output=4",
                   absl::StrCat("--title=", name),
                   "--out=" + Path(name)}),
              0)
        << Text("output");
  }
  ASSERT_EQ(
      Run({"report",
           absl::StrCat("--results=", Path("first/summary.json"), ",", Path("second/summary.json")),
           "--html=" + Path("both.html")}),
      0)
      << Text("output");
  EXPECT_THAT(Text("both.html"), HasSubstr("first (A) and second (B)"));
}

TEST_F(LoadtestProcessTest, BadFlagsAreRefusedBeforeAnythingIsSent) {
  EXPECT_EQ(Run({"run"}), 2);
  EXPECT_THAT(Text("output"), HasSubstr("say when requests arrive"));
  EXPECT_EQ(Run({"run", "--rate=1", "--requests=1", "--input=many"}), 2);
  EXPECT_THAT(Text("output"), HasSubstr("length \"many\""));
  EXPECT_EQ(Run({"run", "--rate=1", "--slo=quick", "--requests=1"}), 2);
  EXPECT_THAT(Text("output"), HasSubstr("SLO \"quick\""));
  EXPECT_EQ(Run({"run", "--trace=nowhere.jsonl"}), 1);
  EXPECT_THAT(Text("output"), HasSubstr("nowhere.jsonl"));
  EXPECT_EQ(Run({"measure"}), 2);
  EXPECT_EQ(Run({"search", "--duration=1s"}), 2);
  EXPECT_THAT(Text("output"), HasSubstr("search needs one --slo"));
  EXPECT_EQ(Run({"search", "--slo=server", "--rate=5", "--duration=1s"}), 2);
  EXPECT_THAT(Text("output"), HasSubstr("search chooses the rate itself"));
  EXPECT_EQ(Run({"report"}), 2);
  EXPECT_EQ(Run({"report", "--results=nowhere.json"}), 1);
  EXPECT_EQ(Run({"report", "--results=README.md"}), 2);
}

}  // namespace
}  // namespace baton::testing
