#include "services/loadtest/load_options.h"

#include "absl/status/status.h"
#include "absl/time/time.h"

#include "common/base/status_macros.h"
#include "services/loadtest/arrivals/unit_intervals.h"
#include "services/loadtest/workload/length_distribution.h"

namespace baton::loadtest {
namespace {

absl::Status CheckArrivals(const ArrivalOptions& arrivals, int64_t concurrency) {
  const int sources = (arrivals.rate > 0.0 ? 1 : 0) + (arrivals.stages.empty() ? 0 : 1) +
                      (arrivals.trace.empty() ? 0 : 1);
  if (sources > 1) {
    return absl::InvalidArgumentError("give only one of --rate, --stages and --trace");
  }
  if (sources == 0 && concurrency == 0) {
    return absl::InvalidArgumentError(
        "say when requests arrive: --rate, --stages or --trace for an open loop, --concurrency for "
        "a closed one");
  }
  if (arrivals.rate < 0.0 || arrivals.rate > 1e6 || !(arrivals.burstiness > 0.0) ||
      !(arrivals.trace_speed > 0.0)) {
    return absl::InvalidArgumentError(
        "--rate must be from 0 to 1000000, --burstiness and --trace_speed greater than 0");
  }
  return absl::OkStatus();
}

// Whether the load ends by itself.
bool HasEnd(const LoadOptions& options) {
  const bool dataset = !options.workload.cases.empty() || !options.workload.sharegpt.empty();
  return options.driver.max_requests > 0 || options.driver.duration != absl::InfiniteDuration() ||
         !options.arrivals.stages.empty() || !options.arrivals.trace.empty() ||
         (dataset && !options.workload.repeat);
}

}  // namespace

absl::Status Validate(const LoadOptions& options) {
  const WorkloadOptions& workload = options.workload;
  BATON_RETURN_IF_ERROR(CheckArrivals(options.arrivals, options.driver.concurrency));
  BATON_RETURN_IF_ERROR(ParseArrivalProcess(options.arrivals.process).status());
  BATON_RETURN_IF_ERROR(LengthDistribution::Parse(workload.input).status());
  BATON_RETURN_IF_ERROR(LengthDistribution::Parse(workload.output).status());
  if (!workload.cases.empty() && !workload.sharegpt.empty()) {
    return absl::InvalidArgumentError("give only one of --cases and --sharegpt");
  }
  if (!options.arrivals.trace.empty() && (!workload.cases.empty() || !workload.sharegpt.empty())) {
    return absl::InvalidArgumentError(
        "--trace brings its own prompt lengths; it goes with neither --cases nor --sharegpt");
  }
  if (!HasEnd(options)) {
    return absl::InvalidArgumentError("say when it ends: --duration or --requests");
  }
  if (workload.prefix_length < 0 || workload.prefixes < 1 || workload.turns < 1) {
    return absl::InvalidArgumentError(
        "--prefix_length must be at least 0, --prefixes and --turns at least 1");
  }
  return absl::OkStatus();
}

}  // namespace baton::loadtest
