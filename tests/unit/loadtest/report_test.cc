// The report: whole, self-contained, and safe with any text in it.
#include <cmath>
#include <string>

#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "services/loadtest/measure/run_result.h"
#include "services/loadtest/measure/slo.h"
#include "services/loadtest/measure/summary.h"
#include "services/loadtest/report/chart.h"
#include "services/loadtest/report/html_report.h"
#include "services/loadtest/report/search_report.h"
#include "services/loadtest/scrape/scraper.h"
#include "services/loadtest/stream/request_record.h"

namespace baton::loadtest {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

size_t CountOf(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) {
    ++count;
  }
  return count;
}

nlohmann::ordered_json SomeSummary(const std::string& title) {
  RunResult run;
  run.title = title;
  run.settings = {{"rate", "5"}};
  for (int64_t i = 0; i < 20; ++i) {
    RequestRecord record;
    record.index = i;
    record.scheduled = record.sent = i * absl::Milliseconds(50);
    record.end = record.sent + absl::Milliseconds(30);
    record.messages = {{.after_us = 10'000, .tokens = 1}, {.after_us = 20'000, .tokens = 1}};
    record.code = i == 7 ? absl::StatusCode::kUnavailable : absl::StatusCode::kOk;
    record.error = "<script>alert(1)</script>";
    record.kv_policy = "dense";
    run.records.push_back(record);
  }
  run.slos = *ParseSlos("server");
  run.stages = RateProfile::Parse("1s@20")->stages();
  run.unsent = {absl::Milliseconds(950), absl::Milliseconds(960), absl::Milliseconds(970)};
  run.self.cores = 1.5;
  run.hooks = {{.at = absl::Milliseconds(300), .command = "kill -STOP 1", .result = "exit 0"}};
  ScrapedService service;
  service.url = "http://127.0.0.1:1/metrics";
  service.growth = {{"baton_stage_duration_seconds_sum{role=\"router\",stage=\"admit\"}", 0.5},
                    {"baton_stage_duration_seconds_count{role=\"router\",stage=\"admit\"}", 10}};
  service.failures = 2;
  service.last_error = "no answer";
  service.gauges = {
      {.at = run.started + absl::Milliseconds(100), .values = {{"baton_requests_waiting", 3.0}}}};
  run.services = {service};
  return Summarize(run);
}

TEST(HtmlReportTest, NeedsNothingFromOutsideAndRunsNothing) {
  const std::string html = HtmlReport({SomeSummary("one")});
  EXPECT_TRUE(html.starts_with("<!doctype html>"));
  EXPECT_TRUE(html.ends_with("</html>\n"));
  for (const char* reference : {"<script", "src=", "href=", "url(", "@import"}) {
    EXPECT_THAT(html, Not(HasSubstr(reference)));
  }
  EXPECT_EQ(CountOf(html, "<svg"), CountOf(html, "</svg>"));
  EXPECT_EQ(CountOf(html, "<table"), CountOf(html, "</table>"));
  EXPECT_EQ(CountOf(html, "<tr>"), CountOf(html, "</tr>"));
}

TEST(HtmlReportTest, HasEveryPart) {
  const std::string html = HtmlReport({SomeSummary("one")});
  for (const char* part : {"Load test one",
                           "Time to first token",
                           "(ITL)",
                           "Requests per second",
                           "waiting in the services",
                           "Where a request&#39;s time goes",
                           "KV shipped",
                           "UNAVAILABLE",
                           "&lt;script&gt;",
                           "kill -STOP 1: exit 0",
                           "<tr><td>admit</td><td class=\"text\">router</td>",
                           "<td>2</td><td class=\"text\">no answer</td>",
                           "--rate",
                           "good: server, %",
                           "0 to 1 s",
                           "<td>23</td><td>1</td><td>3</td>",
                           "of 1.5 cores"}) {
    EXPECT_THAT(html, HasSubstr(part));
  }
}

TEST(HtmlReportTest, ASummaryWhoseStagesDoNotSayWhatWasHeldBackHasAReportToo) {
  auto summary = SomeSummary("older");
  summary["stages"][0].erase("unsent");
  EXPECT_THAT(HtmlReport({summary}), HasSubstr("<td>23</td><td>1</td><td>0</td>"));
}

TEST(HtmlReportTest, TwoRunsStandSideBySideWithTheChange) {
  auto slower = SomeSummary("slow");
  slower["latency_ms"]["ttft"]["p50"] = 20.0;
  const std::string html = HtmlReport({SomeSummary("fast"), slower});
  EXPECT_THAT(html, HasSubstr("fast (A) and slow (B)"));
  EXPECT_THAT(html, HasSubstr("<td class=\"worse\">+100.0 %</td>"));
  EXPECT_THAT(html, HasSubstr("since due B"));
}

TEST(HtmlReportTest, ARunWithoutAnyRequestHasAReportToo) {
  EXPECT_THAT(HtmlReport({Summarize(RunResult())}), HasSubstr("no data"));
}

TEST(ChartTest, PointsAreDrawnToScale) {
  const std::string svg = LineChart({.title = "t", .x = "s", .y = "y"},
                                    {{.name = "a", .color = "red", .points = {{0, 0}, {10, 5}}}});
  // The lower left and the upper right corner of the axes.
  EXPECT_THAT(svg, HasSubstr("d=\"M58.0 222.0h0L546.0 44.0\""));
}

TEST(ChartTest, ALogarithmicAxisTakesZeros) {
  const std::string svg =
      LineChart({.title = "t", .x = "ms", .y = "share", .log_x = true},
                {{.name = "a", .color = "red", .points = {{0, 0}, {1, 0.5}, {100, 1}}}});
  EXPECT_THAT(svg, HasSubstr("d=\"M58.0 222.0h0L58.0 133.0L546.0 44.0\""));
  EXPECT_THAT(svg, Not(HasSubstr("nan")));
}

TEST(ChartTest, APointWithoutAValueInterruptsTheLine) {
  const double none = std::nan("");
  const std::string svg = LineChart(
      {.title = "t", .x = "s", .y = "y"},
      {{.name = "a", .color = "red", .points = {{0, 5}, {2, none}, {5, 0}, {8, none}, {10, 5}}}});
  EXPECT_THAT(svg, HasSubstr("d=\"M58.0 44.0h0M302.0 222.0h0M546.0 44.0h0\""));
}

TEST(ChartTest, WithoutAnyValueItSaysSo) {
  EXPECT_THAT(LineChart({}, {{.name = "a", .color = "red", .points = {{0, std::nan("")}}}}),
              HasSubstr("no data"));
}

TEST(ChartTest, LabelsOfMarksStayInTheDrawing) {
  const std::string svg =
      LineChart({.title = "t", .x = "s", .y = "y", .marks = {{1, "early"}, {9, "late"}}},
                {{.name = "a", .color = "red", .points = {{0, 0}, {10, 5}}}});
  EXPECT_THAT(svg, HasSubstr("text-anchor=\"start\">early"));
  EXPECT_THAT(svg, HasSubstr("text-anchor=\"end\">late"));
}

TEST(SearchReportTest, HasRatesProbesAndSettings) {
  const std::string html =
      SearchReport({{"title", "a<b"},
                    {"slo", "server"},
                    {"ttft_ms", 2000},
                    {"tpot_ms", 100},
                    {"probes",
                     {{{"rate", 4.0},
                       {"share", 0.95},
                       {"requests_per_s", 3.8},
                       {"requests", 40},
                       {"failed", 1},
                       {"ttft_p99", 1500.0},
                       {"tpot_p99", 20.0},
                       {"itl_p99", 30.0},
                       {"bottleneck", true}}}},
                    {"results",
                     {{{"target", 0.9}, {"rate", 4.0}, {"at_most", true}},
                      {{"target", 0.99}, {"rate", nullptr}, {"at_most", false}}}},
                    {"settings", {{"input", "256"}}}});
  for (const char* part : {"Goodput search: a&lt;b",
                           "first token within 2000 ms",
                           "<td>at least 90 %</td><td>4 requests/s or more (--max_rate)</td>",
                           "<td>at least 99 %</td><td>even the lowest rate failed</td>",
                           "<td>95.00</td><td>3.8</td><td>1</td>",
                           "load test too slow",
                           "--input"}) {
    EXPECT_THAT(html, HasSubstr(part));
  }
}

TEST(ChartTest, NumbersAreShort) {
  EXPECT_EQ(ShortNumber(0), "0");
  EXPECT_EQ(ShortNumber(0.25), "0.25");
  EXPECT_EQ(ShortNumber(1234), "1234");
  EXPECT_EQ(ShortNumber(12345), "12.3k");
  EXPECT_EQ(ShortNumber(-3.2e6), "-3.2M");
  EXPECT_EQ(TableNumber(12345), "12345");
  EXPECT_EQ(TableNumber(12345.6), "12.3k");
}

TEST(ChartTest, TextIsEscaped) {
  EXPECT_EQ(Escape("a<b> & \"c\" 'd'"), "a&lt;b&gt; &amp; &quot;c&quot; &#39;d&#39;");
}

}  // namespace
}  // namespace baton::loadtest
