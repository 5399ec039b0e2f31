#include "services/loadtest/search/goodput_search.h"

#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

#include "common/base/status_macros.h"
#include "services/loadtest/measure/slo.h"
#include "services/loadtest/search/rate_search.h"

namespace baton::loadtest {
namespace {

using nlohmann::ordered_json;

absl::StatusOr<ordered_json> ProbeRow(const ordered_json& summary, const Slo& slo, double rate) {
  for (const ordered_json& goodput : summary.at("goodput")) {
    if (goodput.at("slo") == slo.name) {
      const ordered_json& latency = summary.at("latency_ms");
      return ordered_json{{"rate", rate},
                          {"share", goodput.at("share")},
                          {"requests_per_s", goodput.at("requests_per_s")},
                          {"requests", goodput.at("asked")},
                          {"failed", summary.at("requests").at("failed")},
                          {"ttft_p99", latency.at("scheduled_ttft").at("p99")},
                          {"tpot_p99", latency.at("tpot").at("p99")},
                          {"itl_p99", latency.at("itl").at("p99")},
                          {"bottleneck", !summary.at("load_test").at("bottlenecks").empty()}};
    }
  }
  return absl::InternalError(absl::StrCat("a summary without the SLO ", slo.name));
}

}  // namespace

absl::StatusOr<ordered_json> SearchGoodput(const GoodputSearchOptions& options,
                                           const Probe& probe) {
  std::vector<RateSearch> searches;
  for (const double target : kGoodputTargets) {
    searches.emplace_back(target, options.least, options.most, options.tolerance);
  }
  ordered_json probes = ordered_json::array();
  ordered_json results = ordered_json::array();
  for (RateSearch& search : searches) {
    while (const std::optional<double> rate = search.Next()) {
      if (static_cast<int>(probes.size()) == options.most_probes) {
        break;
      }
      BATON_ASSIGN_OR_RETURN(const ordered_json summary, probe(*rate));
      BATON_ASSIGN_OR_RETURN(ordered_json row, ProbeRow(summary, options.slo, *rate));
      for (RateSearch& other : searches) {
        other.Add(*rate, row.at("share").get<double>());
      }
      probes.push_back(std::move(row));
    }
  }
  for (size_t i = 0; i < searches.size(); ++i) {
    const std::optional<double> best = searches[i].best();
    results.push_back({{"target", kGoodputTargets[i]},
                       {"rate", best.has_value() ? ordered_json(*best) : ordered_json()},
                       {"at_most", best.has_value() && *best >= options.most}});
  }
  return ordered_json{{"format", "baton-loadtest-search/1"},
                      {"slo", options.slo.name},
                      {"ttft_ms", options.slo.ttft_ms},
                      {"tpot_ms", options.slo.tpot_ms},
                      {"probes", std::move(probes)},
                      {"results", std::move(results)}};
}

}  // namespace baton::loadtest
