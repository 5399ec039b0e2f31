#include "services/loadtest/report/search_report.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "services/loadtest/report/chart.h"
#include "services/loadtest/report/page.h"

namespace baton::loadtest {
namespace {

using nlohmann::ordered_json;

constexpr const char* kMeasured = "var(--run-a)";
constexpr const char* kLimits[] = {"var(--run-b)", "var(--pale-b)"};

// A column of the probes over their rates, in the order of rates.
Series OverRate(const ordered_json& found, const char* column, double factor, std::string name) {
  Series series{.name = std::move(name), .color = kMeasured, .points = {}, .dashed = false};
  for (const ordered_json& probe : found.at("probes")) {
    series.points.emplace_back(probe.at("rate").get<double>(),
                               factor * probe.at(column).get<double>());
  }
  std::ranges::sort(series.points);
  return series;
}

// A level line over the rates of `measured`.
Series Limit(const Series& measured, double level, std::string name, const char* color) {
  const double end = measured.points.empty() ? 0.0 : measured.points.back().first;
  return {.name = std::move(name),
          .color = color,
          .points = {{0, level}, {end, level}},
          .dashed = true};
}

std::string ShareChart(const ordered_json& found) {
  std::vector<Series> series = {OverRate(found, "share", 100, "good")};
  for (const ordered_json& result : found.at("results")) {
    const double target = 100 * result.at("target").get<double>();
    series.push_back(Limit(series.front(),
                           target,
                           absl::StrFormat("%g %%", target),
                           kLimits[(series.size() - 1) % 2]));
  }
  return LineChart({.title = "Requests inside both limits", .x = "requests/s sent", .y = "%"},
                   series);
}

std::string LatencyChart(const ordered_json& found,
                         const std::string& title,
                         const char* column,
                         const char* limit) {
  Series measured = OverRate(found, column, 1, "p99");
  Series objective = Limit(measured, found.at(limit).get<double>(), "objective", kLimits[0]);
  return LineChart({.title = title, .x = "requests/s sent", .y = "ms"},
                   {std::move(measured), std::move(objective)});
}

std::string GoodputChart(const ordered_json& found) {
  return LineChart({.title = "Goodput", .x = "requests/s sent", .y = "good requests/s"},
                   {OverRate(found, "requests_per_s", 1, "good")});
}

std::string FoundRate(const ordered_json& result) {
  if (result.at("rate").is_null()) {
    return "even the lowest rate failed";
  }
  return absl::StrCat(ShortNumber(result.at("rate").get<double>()),
                      " requests/s",
                      result.at("at_most").get<bool>() ? " or more (--max_rate)" : "");
}

void AddResults(const ordered_json& found, std::string* html) {
  absl::StrAppendFormat(html,
                        "<p>Objective %s: first token within %g ms of the time when a request was "
                        "due, and %g ms per token after it.</p>\n"
                        "<table><tr><th>good requests</th><th>highest rate</th></tr>\n",
                        Escape(found.at("slo").get<std::string>()),
                        found.at("ttft_ms").get<double>(),
                        found.at("tpot_ms").get<double>());
  for (const ordered_json& result : found.at("results")) {
    absl::StrAppendFormat(html,
                          "<tr><td>at least %g %%</td><td>%s</td></tr>\n",
                          100 * result.at("target").get<double>(),
                          FoundRate(result));
  }
  absl::StrAppend(html, "</table>\n");
}

void AddProbes(const ordered_json& found, std::string* html) {
  absl::StrAppend(html,
                  "<h2>Probes, in their order</h2>\n<table><tr><th>requests/s</th><th>requests</th>"
                  "<th>good, %</th><th>good/s</th><th>failed</th><th>TTFT p99, ms</th>"
                  "<th>TPOT p99, ms</th><th>ITL p99, ms</th><th class=\"text\"></th></tr>\n");
  for (const ordered_json& probe : found.at("probes")) {
    absl::StrAppend(html, "<tr><td>", TableNumber(probe.at("rate").get<double>()), "</td>");
    absl::StrAppend(html, "<td>", TableNumber(probe.at("requests").get<double>()), "</td>");
    absl::StrAppendFormat(html, "<td>%.2f</td>", 100 * probe.at("share").get<double>());
    for (const char* figure : {"requests_per_s", "failed", "ttft_p99", "tpot_p99", "itl_p99"}) {
      absl::StrAppend(html, "<td>", TableNumber(probe.at(figure).get<double>()), "</td>");
    }
    absl::StrAppend(html,
                    "<td class=\"text\">",
                    probe.at("bottleneck").get<bool>() ? "load test too slow" : "",
                    "</td></tr>\n");
  }
  absl::StrAppend(html, "</table>\n");
}

void AddSettings(const ordered_json& found, std::string* html) {
  absl::StrAppend(html, "<h2>How it was measured</h2>\n<table>\n");
  for (const auto& [flag, value] : found.at("settings").items()) {
    absl::StrAppend(html, "<tr><td>--", Escape(flag), "</td><td class=\"text\">");
    absl::StrAppend(html, Escape(value.get<std::string>()), "</td></tr>\n");
  }
  absl::StrAppend(html, "</table>\n");
}

}  // namespace

std::string SearchReport(const ordered_json& found) {
  const auto title = found.at("title").get<std::string>();
  std::string html;
  AddResults(found, &html);
  absl::StrAppend(&html,
                  "<div class=\"charts\">\n",
                  ShareChart(found),
                  GoodputChart(found),
                  LatencyChart(found, "Time to first token, since due", "ttft_p99", "ttft_ms"),
                  LatencyChart(found, "Time per output token", "tpot_p99", "tpot_ms"),
                  "</div>\n");
  AddProbes(found, &html);
  AddSettings(found, &html);
  return Page(absl::StrCat("Goodput search", title.empty() ? "" : ": ", title), html);
}

}  // namespace baton::loadtest
