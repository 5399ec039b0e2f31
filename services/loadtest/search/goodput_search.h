// The maximum goodput of a server: the highest rate with 90 % and with 99 % of requests good.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

#include "services/loadtest/measure/slo.h"

namespace baton::loadtest {

// Shares of good requests that a rate is searched for (DistServe's, and the stricter one).
inline constexpr double kGoodputTargets[] = {0.90, 0.99};

struct GoodputSearchOptions {
  Slo slo;
  double least = 1.0;  // requests per second
  double most = 1000.0;
  double tolerance = 0.05;
  int most_probes = 30;
};

// Sends a load at a rate and gives its summary (Summarize), with the SLO searched for among its
// goodput.
using Probe = std::function<absl::StatusOr<nlohmann::ordered_json>(double rate)>;

// {"format", "slo", "ttft_ms", "tpot_ms", "probes": [{"rate", "share", "requests_per_s", "failed",
// "ttft_p99", "tpot_p99", "itl_p99", "bottleneck"}], "results": [{"target", "rate", "at_most"}]}:
// `rate` is null where even the lowest one failed; `at_most` tells that it is the highest one that
// may be tried, so that the server may do better. Probes of one target serve the other, too. A
// probe's error ends the search.
absl::StatusOr<nlohmann::ordered_json> SearchGoodput(const GoodputSearchOptions& options,
                                                     const Probe& probe);

}  // namespace baton::loadtest
