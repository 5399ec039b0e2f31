// Counters and histograms of a scrape as JSON.
#pragma once

#include <string_view>
#include <vector>

#include "nlohmann/json.hpp"
#include "prometheus/metric_family.h"

namespace baton::router {

// Reads one collection of a registry, which it borrows. Thread-compatible.
class MetricSums {
 public:
  explicit MetricSums(const std::vector<prometheus::MetricFamily>& families)
      : families_(families) {}

  // A counter over all its labels; 0 where there is none.
  double Sum(std::string_view family) const;
  // {value of `label`: counter}, those at 0 left out.
  nlohmann::ordered_json SumsBy(std::string_view family, std::string_view label) const;
  // [{label: value, ..., "value": counter}] without the constant labels.
  nlohmann::ordered_json Rows(std::string_view family) const;
  // A histogram without labels: {"count", "sum", "p50", "p90", "p99", "buckets": [[upper bound,
  // count up to it], ...]}, null where there is none. Quantiles are null before the first
  // observation; the last bucket's bound is null, for infinity.
  nlohmann::ordered_json Histogram(std::string_view family) const;
  // {value of `label`: histogram}.
  nlohmann::ordered_json HistogramsBy(std::string_view family, std::string_view label) const;

 private:
  const prometheus::MetricFamily* Find(std::string_view name) const;

  const std::vector<prometheus::MetricFamily>& families_;
};

}  // namespace baton::router
