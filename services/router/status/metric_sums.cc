#include "services/router/status/metric_sums.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <string_view>
#include <utility>

#include "nlohmann/json.hpp"
#include "prometheus/client_metric.h"
#include "prometheus/metric_family.h"

namespace baton::router {
namespace {

using Histogram = prometheus::ClientMetric::Histogram;
using nlohmann::ordered_json;

std::string_view LabelOf(const prometheus::ClientMetric& metric, std::string_view name) {
  for (const auto& label : metric.label) {
    if (label.name == name) {
      return label.value;
    }
  }
  return {};
}

// The value below which `share` of the observations lie, linear within its bucket; the lower bound
// of the last bucket, which has no upper one. As histogram_quantile of Prometheus does it.
ordered_json Quantile(const Histogram& histogram, double share) {
  const double rank = share * static_cast<double>(histogram.sample_count);
  double lower_bound = 0;
  double below = 0;
  for (const auto& bucket : histogram.bucket) {
    const auto count = static_cast<double>(bucket.cumulative_count);
    if (count >= rank && count > below) {
      if (std::isinf(bucket.upper_bound)) {
        return lower_bound;
      }
      return lower_bound + (bucket.upper_bound - lower_bound) * (rank - below) / (count - below);
    }
    lower_bound = bucket.upper_bound;
    below = count;
  }
  return nullptr;
}

ordered_json ToJson(const Histogram& histogram) {
  ordered_json buckets = ordered_json::array();
  for (const auto& bucket : histogram.bucket) {
    const bool last = std::isinf(bucket.upper_bound);
    buckets.push_back(
        {last ? ordered_json(nullptr) : ordered_json(bucket.upper_bound), bucket.cumulative_count});
  }
  return {{"count", histogram.sample_count},
          {"sum", histogram.sample_sum},
          {"p50", Quantile(histogram, 0.5)},
          {"p90", Quantile(histogram, 0.9)},
          {"p99", Quantile(histogram, 0.99)},
          {"buckets", std::move(buckets)}};
}

}  // namespace

const prometheus::MetricFamily* MetricSums::Find(std::string_view name) const {
  const auto found = std::ranges::find(families_, name, &prometheus::MetricFamily::name);
  return found == families_.end() ? nullptr : &*found;
}

double MetricSums::Sum(std::string_view family) const {
  double sum = 0;
  if (const auto* found = Find(family); found != nullptr) {
    for (const auto& metric : found->metric) {
      sum += metric.counter.value;
    }
  }
  return sum;
}

ordered_json MetricSums::SumsBy(std::string_view family, std::string_view label) const {
  ordered_json sums = ordered_json::object();
  if (const auto* found = Find(family); found != nullptr) {
    for (const auto& metric : found->metric) {
      if (metric.counter.value > 0) {
        ordered_json& sum = sums[std::string(LabelOf(metric, label))];
        sum = (sum.is_null() ? 0.0 : sum.get<double>()) + metric.counter.value;
      }
    }
  }
  return sums;
}

ordered_json MetricSums::Rows(std::string_view family) const {
  ordered_json rows = ordered_json::array();
  if (const auto* found = Find(family); found != nullptr) {
    for (const auto& metric : found->metric) {
      ordered_json row;
      for (const auto& label : metric.label) {
        if (label.name != "model_name" && label.name != "role") {
          row[label.name] = label.value;
        }
      }
      row["value"] = metric.counter.value;
      rows.push_back(std::move(row));
    }
  }
  return rows;
}

ordered_json MetricSums::Histogram(std::string_view family) const {
  const auto* found = Find(family);
  return found == nullptr || found->metric.empty() ? ordered_json(nullptr)
                                                   : ToJson(found->metric.front().histogram);
}

ordered_json MetricSums::HistogramsBy(std::string_view family, std::string_view label) const {
  ordered_json histograms = ordered_json::object();
  if (const auto* found = Find(family); found != nullptr) {
    for (const auto& metric : found->metric) {
      histograms[std::string(LabelOf(metric, label))] = ToJson(metric.histogram);
    }
  }
  return histograms;
}

}  // namespace baton::router
