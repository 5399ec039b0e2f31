#include <cstdio>
#include <iostream>
#include <string>

#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"

#include "common/base/status_macros.h"
#include "common/rpc/shutdown_signal.h"
#include "services/loadtest/commands/commands.h"
#include "services/loadtest/execute.h"
#include "services/loadtest/flags.h"
#include "services/loadtest/load_options.h"
#include "services/loadtest/measure/run_result.h"
#include "services/loadtest/measure/summary.h"
#include "services/loadtest/report/write_results.h"
#include "services/loadtest/search/goodput_search.h"

ABSL_FLAG(double, min_rate, 1, "search: lowest rate to try, requests per second");
ABSL_FLAG(double, max_rate, 1000, "search: highest rate to try");
ABSL_FLAG(double, tolerance, 0.05, "search: how far the result may be from the truth");

namespace baton::loadtest {
namespace {

using nlohmann::ordered_json;

absl::StatusOr<GoodputSearchOptions> SearchFromFlags(const LoadOptions& options) {
  if (options.slos.size() != 1) {
    return absl::InvalidArgumentError("search needs one --slo, such as --slo=server");
  }
  if (options.arrivals.open_loop()) {
    return absl::InvalidArgumentError(
        "search chooses the rate itself: leave out --rate, --stages and --trace");
  }
  GoodputSearchOptions search;
  search.slo = options.slos.front();
  search.least = absl::GetFlag(FLAGS_min_rate);
  search.most = absl::GetFlag(FLAGS_max_rate);
  search.tolerance = absl::GetFlag(FLAGS_tolerance);
  if (!(search.least > 0.0 && search.least <= search.most && search.most <= 1e6) ||
      !(search.tolerance >= 0.001)) {
    return absl::InvalidArgumentError(
        "search needs 0 < --min_rate <= --max_rate <= 1000000 and --tolerance >= 0.001");
  }
  return search;
}

void PrintProbe(const ordered_json& summary, double rate) {
  const ordered_json& goodput = summary.at("goodput").front();
  std::cout << absl::StrFormat(
                   "%10.2f requests/s: %6.2f %% good of %d; p99 TTFT %.1f ms, TPOT %.2f ms, ITL "
                   "%.2f ms%s",
                   rate,
                   100 * goodput.at("share").get<double>(),
                   goodput.at("asked").get<int64_t>(),
                   summary.at("latency_ms").at("scheduled_ttft").at("p99").get<double>(),
                   summary.at("latency_ms").at("tpot").at("p99").get<double>(),
                   summary.at("latency_ms").at("itl").at("p99").get<double>(),
                   summary.at("load_test").at("bottlenecks").empty() ? "" : " (load test too slow)")
            << std::endl;
}

void PrintResults(const ordered_json& found) {
  for (const ordered_json& result : found.at("results")) {
    const std::string rate =
        result.at("rate").is_null()
            ? "none: even the lowest rate failed"
            : absl::StrFormat("%.2f requests/s%s",
                              result.at("rate").get<double>(),
                              result.at("at_most").get<bool>() ? " or more (--max_rate)" : "");
    std::cout << absl::StrFormat("maximum goodput, %s, >= %.0f %% good: %s\n",
                                 found.at("slo").get<std::string>(),
                                 100 * result.at("target").get<double>(),
                                 rate);
  }
}

}  // namespace

absl::Status RunSearch() {
  rpc::ShutdownSignal signal;
  BATON_ASSIGN_OR_RETURN(LoadOptions options, LoadOptionsFromFlags());
  BATON_ASSIGN_OR_RETURN(const GoodputSearchOptions search, SearchFromFlags(options));
  const std::string folder = absl::GetFlag(FLAGS_out);
  BATON_RETURN_IF_ERROR(MakeFolder(folder));
  const Probe probe = [&](double rate) -> absl::StatusOr<ordered_json> {
    options.arrivals.rate = rate;
    BATON_ASSIGN_OR_RETURN(const RunResult run, Execute(options, &signal));
    if (run.stopped) {
      return absl::CancelledError("stopped by a signal; no rate was found");
    }
    ordered_json summary = Summarize(run);
    PrintProbe(summary, rate);
    return summary;
  };
  BATON_ASSIGN_OR_RETURN(ordered_json found, SearchGoodput(search, probe));
  found["title"] = options.title;
  found["settings"] = options.settings;
  PrintResults(found);
  return folder.empty() ? absl::OkStatus() : WriteSearch(found, folder);
}

}  // namespace baton::loadtest
