#include "services/loadtest/report/service_tables.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"

#include "services/loadtest/report/chart.h"
#include "services/loadtest/scrape/exposition.h"

namespace baton::loadtest {
namespace {

using nlohmann::ordered_json;

constexpr char kSum[] = "baton_stage_duration_seconds_sum";
constexpr char kCount[] = "baton_stage_duration_seconds_count";
// As in common/metrics/metric_families.h; others come behind.
constexpr std::array<std::string_view, 11> kStages = {"admit",
                                                      "route",
                                                      "reserve",
                                                      "prefill_queue",
                                                      "prefill_forward",
                                                      "compress",
                                                      "transfer",
                                                      "decompress",
                                                      "decode_queue",
                                                      "first_decode_step",
                                                      "decode"};
constexpr std::array<std::string_view, 4> kRoles = {"router", "prefill", "decode", "both"};

template <size_t N>
size_t PlaceIn(const std::array<std::string_view, N>& all, const std::string& one) {
  return static_cast<size_t>(std::ranges::find(all, one) - all.begin());
}

struct StageRow {
  std::string stage;
  std::string role;
  size_t run = 0;
  double count = 0.0;
  double seconds = 0.0;
};

// Several workers of a role are one row.
void AddTo(std::vector<StageRow>* rows, const StageRow& row) {
  const auto same = std::ranges::find_if(*rows, [&](const StageRow& other) {
    return std::tie(other.stage, other.role, other.run) == std::tie(row.stage, row.role, row.run);
  });
  if (same == rows->end()) {
    rows->push_back(row);
    return;
  }
  same->count += row.count;
  same->seconds += row.seconds;
}

std::vector<StageRow> StageRows(const std::vector<ordered_json>& runs) {
  std::vector<StageRow> rows;
  for (size_t run = 0; run < runs.size(); ++run) {
    for (const ordered_json& service : runs[run].at("services")) {
      for (const auto& [name, sum] : service.at("growth").items()) {
        if (FamilyOf(name) == kSum) {
          const std::string count = absl::StrCat(kCount, name.substr(sizeof(kSum) - 1));
          AddTo(&rows,
                {.stage = LabelOf(name, "stage"),
                 .role = LabelOf(name, "role"),
                 .run = run,
                 .count = service.at("growth").value(count, 0.0),
                 .seconds = sum.get<double>()});
        }
      }
    }
  }
  std::ranges::sort(rows, {}, [](const StageRow& row) {
    return std::tuple(
        PlaceIn(kStages, row.stage), row.stage, PlaceIn(kRoles, row.role), row.role, row.run);
  });
  return rows;
}

}  // namespace

std::string StageTable(const std::vector<ordered_json>& runs,
                       const std::vector<std::string>& names) {
  const std::vector<StageRow> rows = StageRows(runs);
  if (rows.empty()) {
    return "";
  }
  std::string html =
      "<table><tr><th>stage, as the services counted it</th><th class=\"text\">by</th>"
      "<th class=\"text\">run</th><th>requests</th><th>mean ms</th></tr>\n";
  for (const StageRow& row : rows) {
    const double mean_ms = row.count > 0.0 ? 1e3 * row.seconds / row.count : 0.0;
    absl::StrAppend(&html, "<tr><td>", Escape(row.stage), "</td><td class=\"text\">");
    absl::StrAppend(&html, Escape(row.role), "</td><td class=\"text\">", Escape(names[row.run]));
    absl::StrAppend(&html, "</td><td>", TableNumber(row.count), "</td><td>", ShortNumber(mean_ms));
    absl::StrAppend(&html, "</td></tr>\n");
  }
  return html + "</table>\n";
}

std::string FailedScrapesTable(const std::vector<ordered_json>& runs,
                               const std::vector<std::string>& names) {
  std::string rows;
  for (size_t run = 0; run < runs.size(); ++run) {
    for (const ordered_json& service : runs[run].at("services")) {
      const auto failures = service.at("failed_scrapes").get<int64_t>();
      if (failures > 0) {
        absl::StrAppend(&rows, "<tr><td>", Escape(service.at("url").get<std::string>()));
        absl::StrAppend(&rows, "</td><td class=\"text\">", Escape(names[run]), "</td><td>");
        absl::StrAppend(&rows, failures, "</td><td class=\"text\">");
        absl::StrAppend(&rows, Escape(service.at("last_error").get<std::string>()), "</td></tr>\n");
      }
    }
  }
  return rows.empty() ? ""
                      : absl::StrCat(
                            "<table><tr><th>scraped</th><th class=\"text\">run</th>"
                            "<th>times without an answer</th>"
                            "<th class=\"text\">the last one</th></tr>\n",
                            rows,
                            "</table>\n");
}

}  // namespace baton::loadtest
