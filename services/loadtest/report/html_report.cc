#include "services/loadtest/report/html_report.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "services/loadtest/report/chart.h"
#include "services/loadtest/report/page.h"
#include "services/loadtest/report/service_tables.h"

namespace baton::loadtest {
namespace {

using nlohmann::ordered_json;
using Summaries = std::vector<ordered_json>;

constexpr const char* kRunColors[] = {"var(--run-a)", "var(--run-b)"};
constexpr const char* kPaleColors[] = {"var(--pale-a)", "var(--pale-b)"};
constexpr double kBytesInMib = 1 << 20;
constexpr double kBytesInGib = 1 << 30;

double Number(const ordered_json& summary, const char* pointer) {
  return summary.at(ordered_json::json_pointer(pointer)).get<double>();
}

// Its title; without one when it was started, or "A" and "B" where there are two.
std::string RunName(const Summaries& runs, size_t run) {
  auto title = runs[run].at("title").get<std::string>();
  if (runs.size() == 1) {
    return title.empty() ? runs[run].at("started_at").get<std::string>() : title;
  }
  return title.empty() ? std::string(1, static_cast<char>('A' + run)) : title;
}

std::vector<std::string> RunNames(const Summaries& runs) {
  std::vector<std::string> names;
  names.reserve(runs.size());
  for (size_t run = 0; run < runs.size(); ++run) {
    names.push_back(RunName(runs, run));
  }
  return names;
}

std::string WithRun(const Summaries& runs, size_t run, const std::string& name) {
  return runs.size() == 1 ? name
                          : absl::StrCat(name, " ", std::string(1, static_cast<char>('A' + run)));
}

enum class Better { kMore, kLess, kNeither };

// A row of the table of figures.
struct Figure {
  const char* name;
  const char* pointer;
  Better better;
};

constexpr Figure kFigures[] = {
    {"requests sent", "/requests/sent", Better::kNeither},
    {"succeeded", "/requests/succeeded", Better::kNeither},
    {"failed", "/requests/failed", Better::kLess},
    {"truncated", "/requests/truncated", Better::kLess},
    {"not sent (held back)", "/requests/unsent", Better::kLess},
    {"requests/s", "/throughput/requests_per_s", Better::kMore},
    {"output tokens/s", "/throughput/output_tokens_per_s", Better::kMore},
    {"prompt tokens/s", "/throughput/prompt_tokens_per_s", Better::kMore},
    {"TTFT p50, ms", "/latency_ms/ttft/p50", Better::kLess},
    {"TTFT p99, ms", "/latency_ms/ttft/p99", Better::kLess},
    {"TTFT from schedule p99, ms", "/latency_ms/scheduled_ttft/p99", Better::kLess},
    {"TPOT p50, ms", "/latency_ms/tpot/p50", Better::kLess},
    {"TPOT p99, ms", "/latency_ms/tpot/p99", Better::kLess},
    {"ITL p50, ms", "/latency_ms/itl/p50", Better::kLess},
    {"ITL p99, ms", "/latency_ms/itl/p99", Better::kLess},
    {"E2E p50, ms", "/latency_ms/e2e/p50", Better::kLess},
    {"E2E p99, ms", "/latency_ms/e2e/p99", Better::kLess}};

// The change from `before` to `after` in per cent, green where it is for the better.
std::string ChangeCell(double before, double after, Better better) {
  if (before == 0.0 || before == after) {
    return "<td></td>";
  }
  const char* style = "";
  if (better != Better::kNeither) {
    style = (after > before) == (better == Better::kMore) ? "better" : "worse";
  }
  return absl::StrFormat("<td class=\"%s\">%+.1f %%</td>", style, 100 * (after - before) / before);
}

void AddFigureRow(const Summaries& runs,
                  const std::string& name,
                  const std::vector<double>& values,
                  Better better,
                  std::string* html) {
  absl::StrAppend(html, "<tr><td>", Escape(name), "</td>");
  for (const double value : values) {
    absl::StrAppend(html, "<td>", TableNumber(value), "</td>");
  }
  if (runs.size() == 2) {
    absl::StrAppend(html, ChangeCell(values[0], values[1], better));
  }
  absl::StrAppend(html, "</tr>\n");
}

// One row for every SLO that all runs have.
void AddGoodputRows(const Summaries& runs, std::string* html) {
  for (size_t slo = 0; slo < runs.front().at("goodput").size(); ++slo) {
    std::vector<double> values;
    const ordered_json& first = runs.front().at("goodput").at(slo);
    for (const ordered_json& run : runs) {
      for (const ordered_json& other : run.at("goodput")) {
        if (other.at("slo") == first.at("slo")) {
          values.push_back(100 * other.at("share").get<double>());
        }
      }
    }
    if (values.size() == runs.size()) {
      AddFigureRow(runs,
                   absl::StrCat("good: ", first.at("slo").get<std::string>(), ", %"),
                   values,
                   Better::kMore,
                   html);
    }
  }
}

void AddFigures(const Summaries& runs, std::string* html) {
  absl::StrAppend(html, "<h2>Figures</h2>\n<table><tr><th></th>");
  for (size_t run = 0; run < runs.size(); ++run) {
    absl::StrAppend(html, "<th>", Escape(RunName(runs, run)), "</th>");
  }
  absl::StrAppend(html, runs.size() == 2 ? "<th>change</th></tr>\n" : "</tr>\n");
  for (const Figure& figure : kFigures) {
    std::vector<double> values;
    for (const ordered_json& run : runs) {
      values.push_back(Number(run, figure.pointer));
    }
    AddFigureRow(runs, figure.name, values, figure.better, html);
  }
  AddGoodputRows(runs, html);
  absl::StrAppend(html, "</table>\n");
}

// A row for every stage of a load that had some.
void AddStages(const Summaries& runs, std::string* html) {
  absl::StrAppend(html,
                  "<table><tr><th>stage</th><th>run</th><th>1/s</th><th>due</th><th>failed</th>"
                  "<th>held back</th><th>TTFT p50</th><th>p99</th><th>TPOT p99</th><th>ITL p99, "
                  "ms</th></tr>\n");
  for (size_t run = 0; run < runs.size(); ++run) {
    for (const ordered_json& stage : runs[run].at("stages")) {
      absl::StrAppendFormat(html,
                            "<tr><td>%g to %g s</td><td>%s</td><td>%g to %g</td>",
                            Number(stage, "/from_s"),
                            Number(stage, "/to_s"),
                            Escape(RunName(runs, run)),
                            Number(stage, "/rate"),
                            Number(stage, "/end_rate"));
      // Older summaries have no `unsent`.
      for (const double figure : {Number(stage, "/due"),
                                  Number(stage, "/failed"),
                                  stage.value("unsent", 0.0),
                                  Number(stage, "/ttft_p50"),
                                  Number(stage, "/ttft_p99"),
                                  Number(stage, "/tpot_p99"),
                                  Number(stage, "/itl_p99")}) {
        absl::StrAppend(html, "<td>", TableNumber(figure), "</td>");
      }
      absl::StrAppend(html, "</tr>\n");
    }
  }
  absl::StrAppend(html, "</table>\n");
}

bool HaveStages(const Summaries& runs) {
  return std::ranges::any_of(runs, [](const auto& run) { return !run.at("stages").empty(); });
}

void AddWarnings(const Summaries& runs, std::string* html) {
  for (size_t run = 0; run < runs.size(); ++run) {
    for (const ordered_json& reason : runs[run].at("load_test").at("bottlenecks")) {
      absl::StrAppend(html,
                      "<p class=\"warning\">",
                      Escape(WithRun(runs, run, "Not only the server was measured")),
                      ": ",
                      Escape(reason.get<std::string>()),
                      "</p>\n");
    }
  }
}

void AddCurves(const Summaries& runs, std::string* html) {
  absl::StrAppend(html, "<h2>Latencies</h2>\n<div class=\"charts\">\n");
  for (const auto& [name, title] : {std::pair("ttft", "Time to first token"),
                                    std::pair("tpot", "Time per output token"),
                                    std::pair("itl", "Gap between messages with tokens (ITL)"),
                                    std::pair("e2e", "Time to the end of the answer (E2E)")}) {
    std::vector<Series> series;
    for (size_t run = 0; run < runs.size(); ++run) {
      const auto add = [&](const char* key, const std::string& label, const char* color) {
        series.push_back(
            {.name = WithRun(runs, run, label),
             .color = color,
             .points = runs[run].at("curves").at(key).get<std::vector<std::pair<double, double>>>(),
             .dashed = false});
      };
      add(name, "since sent", kRunColors[run]);
      if (std::string(name) == "ttft") {
        add("scheduled_ttft", "since due", kPaleColors[run]);
      }
    }
    absl::StrAppend(html,
                    LineChart({.title = title, .x = "ms", .y = "share", .log_x = true}, series));
  }
  absl::StrAppend(html, "</div>\n");
}

// A column of the timeline, divided by the rows' length where it counts events. Rows without a
// value interrupt it.
Series Column(const ordered_json& summary,
              const char* column,
              bool per_second,
              std::string name,
              const char* color,
              bool dashed) {
  const ordered_json& timeline = summary.at("timeline");
  const double divisor = per_second ? timeline.at("bucket_s").get<double>() : 1.0;
  Series series{.name = std::move(name), .color = color, .points = {}, .dashed = dashed};
  for (const ordered_json& row : timeline.at("rows")) {
    const ordered_json& value = row.at(column);
    series.points.emplace_back(row.at("t").get<double>(),
                               value.is_null() ? std::nan("") : value.get<double>() / divisor);
  }
  return series;
}

std::vector<Mark> HookMarks(const Summaries& runs) {
  std::vector<Mark> marks;
  for (const ordered_json& run : runs) {
    for (const ordered_json& hook : run.at("hooks")) {
      marks.push_back(
          {.at = hook.at("at_s").get<double>(), .label = hook.at("command").get<std::string>()});
    }
  }
  return marks;
}

// The first is drawn strongly, the second palely, the third in red or, where there are two runs, as
// the run.
const char* ColumnColor(const Summaries& runs, size_t run, size_t column) {
  if (column == 1) {
    return kPaleColors[run];
  }
  return column == 2 && runs.size() == 1 ? "var(--worse)" : kRunColors[run];
}

// A chart of up to three columns, the third of them dashed.
std::string TimeChart(const Summaries& runs,
                      const char* title,
                      const char* unit,
                      bool per_second,
                      const std::vector<std::pair<const char*, const char*>>& columns) {
  std::vector<Series> series;
  for (size_t run = 0; run < runs.size(); ++run) {
    for (size_t i = 0; i < columns.size(); ++i) {
      series.push_back(Column(runs[run],
                              columns[i].first,
                              per_second,
                              WithRun(runs, run, columns[i].second),
                              ColumnColor(runs, run, i),
                              i > 1));
    }
  }
  return LineChart({.title = title, .x = "s", .y = unit, .marks = HookMarks(runs)}, series);
}

// A gauge summed over the services that were scraped, over time.
std::vector<std::pair<double, double>> GaugeSum(const ordered_json& summary, const char* family) {
  // Services are scraped one after another: the n-th scrapes belong together.
  std::vector<std::pair<double, double>> sums;
  for (const ordered_json& service : summary.at("services")) {
    const ordered_json& gauges = service.at("gauges");
    sums.resize(std::max(sums.size(), gauges.size()));
    for (size_t i = 0; i < gauges.size(); ++i) {
      sums[i].first = gauges[i].at("t").get<double>();
      sums[i].second += gauges[i].value(family, 0.0);
    }
  }
  return sums;
}

// Requests open at the client and waiting in the services.
std::string QueueChart(const Summaries& runs) {
  std::vector<Series> series;
  for (size_t run = 0; run < runs.size(); ++run) {
    series.push_back(
        Column(runs[run], "open", false, WithRun(runs, run, "open"), kRunColors[run], false));
    series.push_back({.name = WithRun(runs, run, "waiting"),
                      .color = kPaleColors[run],
                      .points = GaugeSum(runs[run], "baton_requests_waiting"),
                      .dashed = true});
  }
  return LineChart({.title = "Requests open, and waiting in the services",
                    .x = "s",
                    .y = "requests",
                    .marks = HookMarks(runs)},
                   series);
}

std::string WaitingTokensChart(const Summaries& runs) {
  std::vector<Series> series;
  series.reserve(runs.size());
  for (size_t run = 0; run < runs.size(); ++run) {
    series.push_back({.name = WithRun(runs, run, "tokens"),
                      .color = kRunColors[run],
                      .points = GaugeSum(runs[run], "baton_waiting_tokens"),
                      .dashed = false});
  }
  return LineChart({.title = "Prompt tokens not yet prefilled, in the services",
                    .x = "s",
                    .y = "tokens",
                    .marks = HookMarks(runs)},
                   series);
}

void AddTimelines(const Summaries& runs, std::string* html) {
  absl::StrAppend(
      html,
      "<h2>Over time</h2>\n<div class=\"charts\">\n",
      TimeChart(runs,
                "Requests per second",
                "1/s",
                true,
                {{"sent", "sent"}, {"ended", "ended"}, {"failed", "failed"}}),
      QueueChart(runs),
      TimeChart(
          runs, "Time to first token", "ms", false, {{"ttft_p99", "p99"}, {"ttft_p50", "p50"}}),
      TimeChart(
          runs, "Gap between tokens (ITL)", "ms", false, {{"itl_p99", "p99"}, {"itl_p50", "p50"}}),
      TimeChart(runs, "Output tokens per second", "tokens/s", true, {{"tokens", "tokens"}}),
      WaitingTokensChart(runs),
      "</div>\n");
}

std::string StageChart(const Summaries& runs) {
  std::vector<Bar> bars;
  bars.reserve(runs.size());
  for (size_t run = 0; run < runs.size(); ++run) {
    Bar bar{.name = WithRun(runs, run, "mean"), .parts = {}};
    for (const auto& [stage, color] : {std::pair("queue", "#adb5bd"),
                                       std::pair("prefill", "#1f6feb"),
                                       std::pair("transfer", "#e8590c"),
                                       std::pair("decode", "#2f9e44")}) {
      bar.parts.push_back(
          {.name = stage,
           .color = color,
           .value =
               Number(runs[run], absl::StrCat("/latency_ms/server_", stage, "/mean").c_str())});
    }
    bars.push_back(std::move(bar));
  }
  return BarChart("Where a request's time goes, by its accounting", "ms", bars);
}

// In GiB where MiB would need five digits.
std::string BytesChart(const std::string& title, std::vector<Bar> bars) {
  const bool large = std::ranges::any_of(
      bars, [](const Bar& bar) { return bar.parts.front().value >= 10 * kBytesInGib; });
  for (Bar& bar : bars) {
    bar.parts.front().value /= large ? kBytesInGib : kBytesInMib;
  }
  return BarChart(title, large ? "GiB" : "MiB", bars);
}

std::string KvChart(const Summaries& runs) {
  std::vector<Bar> bars;
  for (size_t run = 0; run < runs.size(); ++run) {
    for (const ordered_json& kv : runs[run].at("kv")) {
      const auto policy = kv.at("policy").get<std::string>();
      for (const auto& [key, name] :
           {std::pair("logical_bytes", "logical"), std::pair("wire_bytes", "wire")}) {
        bars.push_back(
            {.name = WithRun(runs, run, absl::StrCat(policy.substr(0, 12), " ", name)),
             .parts = {
                 {.name = policy, .color = kRunColors[run], .value = kv.at(key).get<double>()}}});
      }
    }
  }
  return BytesChart("KV shipped: at 16 bits, and on the wire", std::move(bars));
}

void AddErrors(const Summaries& runs, std::string* html) {
  absl::StrAppend(html, "<h2>Requests that did not succeed</h2>\n");
  if (std::ranges::all_of(runs, [](const auto& run) { return run.at("errors").empty(); })) {
    absl::StrAppend(html, "<p>None.</p>\n");
    return;
  }
  absl::StrAppend(html,
                  "<table><tr><th>status</th><th class=\"text\">run</th><th>requests</th>"
                  "<th class=\"text\">for example</th></tr>\n");
  for (size_t run = 0; run < runs.size(); ++run) {
    for (const ordered_json& error : runs[run].at("errors")) {
      absl::StrAppend(html,
                      "<tr><td>",
                      Escape(error.at("status").get<std::string>()),
                      "</td><td class=\"text\">",
                      Escape(RunName(runs, run)),
                      "</td><td>",
                      error.at("count").get<int64_t>(),
                      "</td><td class=\"text\">",
                      Escape(error.at("example").get<std::string>()),
                      "</td></tr>\n");
    }
  }
  absl::StrAppend(html, "</table>\n");
}

void AddSettings(const Summaries& runs, std::string* html) {
  absl::StrAppend(html, "<h2>How it was measured</h2>\n");
  for (size_t run = 0; run < runs.size(); ++run) {
    const ordered_json& self = runs[run].at("load_test");
    absl::StrAppend(
        html,
        "<p><b>",
        Escape(RunName(runs, run)),
        "</b> ",
        Escape(runs[run].at("started_at").get<std::string>()),
        absl::StrFormat(", %.1f s; the load test used %.2f of %g cores and was late by %.2f ms "
                        "(p99).</p>\n<table>\n",
                        Number(runs[run], "/duration_s"),
                        Number(self, "/cores_used"),
                        Number(self, "/cores"),
                        Number(self, "/lateness_ms/p99")));
    for (const auto& [flag, value] : runs[run].at("settings").items()) {
      absl::StrAppend(html,
                      "<tr><td>--",
                      Escape(flag),
                      "</td><td class=\"text\">",
                      Escape(value.get<std::string>()),
                      "</td></tr>\n");
    }
    for (const ordered_json& hook : runs[run].at("hooks")) {
      absl::StrAppend(html,
                      absl::StrFormat("<tr><td>hook at %.1f s", Number(hook, "/at_s")),
                      "</td><td class=\"text\">",
                      Escape(hook.at("command").get<std::string>()),
                      ": ",
                      Escape(hook.at("result").get<std::string>()),
                      "</td></tr>\n");
    }
    absl::StrAppend(html, "</table>\n");
  }
}

}  // namespace

std::string HtmlReport(const Summaries& runs) {
  const std::string title =
      runs.size() == 1 ? absl::StrCat("Load test ", RunName(runs, 0))
                       : absl::StrCat(RunName(runs, 0), " (A) and ", RunName(runs, 1), " (B)");
  std::string html;
  AddWarnings(runs, &html);
  AddFigures(runs, &html);
  if (HaveStages(runs)) {
    AddStages(runs, &html);
  }
  AddCurves(runs, &html);
  AddTimelines(runs, &html);
  absl::StrAppend(&html,
                  "<h2>Stages and KV</h2>\n<div class=\"charts\">\n",
                  StageChart(runs),
                  KvChart(runs),
                  "</div>\n",
                  StageTable(runs, RunNames(runs)));
  AddErrors(runs, &html);
  AddSettings(runs, &html);
  absl::StrAppend(&html, FailedScrapesTable(runs, RunNames(runs)));
  return Page(title, html);
}

}  // namespace baton::loadtest
