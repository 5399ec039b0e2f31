// Gauges whose value is computed when somebody scrapes.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string_view>
#include <vector>

#include "prometheus/labels.h"
#include "prometheus/metric_family.h"

#include "common/metrics/metric_families.h"

namespace baton::metrics {

// Collects the samples of one scrape; given to Registry's gauge callbacks. Lives for one call.
class GaugeWriter {
 public:
  explicit GaugeWriter(const prometheus::Labels& constant_labels)
      : constant_labels_(constant_labels) {}

  // Sets the gauge of `family` with these label values, in the order of family.labels.
  template <size_t N>
  void Set(const GaugeFamily<N>& family,
           const std::array<std::string_view, N>& label_values,
           double value) {
    SetSample(family.name, family.help, family.labels, label_values, value);
  }
  void Set(const GaugeFamily<0>& family, double value) { Set(family, {}, value); }

  std::vector<prometheus::MetricFamily> Take() { return std::move(families_); }

 private:
  void SetSample(std::string_view name,
                 std::string_view help,
                 std::span<const std::string_view> labels,
                 std::span<const std::string_view> label_values,
                 double value);

  const prometheus::Labels& constant_labels_;
  std::vector<prometheus::MetricFamily> families_;
};

}  // namespace baton::metrics
