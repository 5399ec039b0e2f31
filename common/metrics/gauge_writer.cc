#include "common/metrics/gauge_writer.h"

#include <algorithm>
#include <string>
#include <utility>

#include "prometheus/client_metric.h"
#include "prometheus/metric_type.h"

namespace baton::metrics {

void GaugeWriter::SetSample(std::string_view name,
                            std::string_view help,
                            std::span<const std::string_view> labels,
                            std::span<const std::string_view> label_values,
                            double value) {
  auto family = std::find_if(
      families_.begin(), families_.end(), [&](const auto& known) { return known.name == name; });
  if (family == families_.end()) {
    families_.push_back({std::string(name), std::string(help), prometheus::MetricType::Gauge, {}});
    family = std::prev(families_.end());
  }
  prometheus::ClientMetric metric;
  for (const auto& [label, constant] : constant_labels_) {
    metric.label.push_back({label, constant});
  }
  for (size_t i = 0; i < labels.size(); ++i) {
    metric.label.push_back({std::string(labels[i]), std::string(label_values[i])});
  }
  metric.gauge.value = value;
  family->metric.push_back(std::move(metric));
}

}  // namespace baton::metrics
