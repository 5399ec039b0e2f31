#include "common/metrics/registry.h"

#include <algorithm>
#include <sstream>
#include <utility>

#include "prometheus/text_serializer.h"

#include "common/metrics/vllm_aliases.h"

namespace baton::metrics {
namespace {

prometheus::Labels MakeLabels(std::span<const std::string_view> names,
                              std::span<const std::string_view> values) {
  prometheus::Labels labels;
  for (size_t i = 0; i < names.size(); ++i) {
    labels.emplace(names[i], values[i]);
  }
  return labels;
}

void SortForExposition(std::vector<prometheus::MetricFamily>& families) {
  std::sort(families.begin(), families.end(), [](const auto& a, const auto& b) {
    return a.name < b.name;
  });
  for (prometheus::MetricFamily& family : families) {
    for (prometheus::ClientMetric& metric : family.metric) {
      std::sort(metric.label.begin(), metric.label.end());
    }
    std::sort(family.metric.begin(), family.metric.end(), [](const auto& a, const auto& b) {
      return a.label < b.label;
    });
  }
}

}  // namespace

Registry::Registry(RegistryOptions options)
    : options_(std::move(options)),
      constant_labels_({{"model_name", options_.model_name}, {"role", options_.role}}) {}

prometheus::Counter& Registry::GetCounter(std::string_view name,
                                          std::string_view help,
                                          std::span<const std::string_view> labels,
                                          std::span<const std::string_view> label_values) {
  return prometheus::BuildCounter()
      .Name(std::string(name))
      .Help(std::string(help))
      .Labels(constant_labels_)
      .Register(registry_)
      .Add(MakeLabels(labels, label_values));
}

prometheus::Histogram& Registry::GetHistogram(std::string_view name,
                                              std::string_view help,
                                              std::span<const std::string_view> labels,
                                              std::span<const std::string_view> label_values,
                                              std::span<const double> buckets) {
  return prometheus::BuildHistogram()
      .Name(std::string(name))
      .Help(std::string(help))
      .Labels(constant_labels_)
      .Register(registry_)
      .Add(MakeLabels(labels, label_values),
           prometheus::Histogram::BucketBoundaries(buckets.begin(), buckets.end()));
}

void Registry::AddGauges(GaugeCallback callback) {
  absl::MutexLock lock(&mutex_);
  gauge_callbacks_.push_back(std::move(callback));
}

void Registry::ClearGauges() {
  absl::MutexLock lock(&mutex_);
  gauge_callbacks_.clear();
}

std::vector<prometheus::MetricFamily> Registry::Collect() const {
  std::vector<prometheus::MetricFamily> families = registry_.Collect();
  GaugeWriter writer(constant_labels_);
  {
    absl::MutexLock lock(&mutex_);
    for (const GaugeCallback& callback : gauge_callbacks_) {
      callback(writer);
    }
  }
  for (prometheus::MetricFamily& family : writer.Take()) {
    families.push_back(std::move(family));
  }
  if (options_.vllm_aliases) {
    for (prometheus::MetricFamily& alias : VllmAliases(families)) {
      families.push_back(std::move(alias));
    }
  }
  SortForExposition(families);
  return families;
}

std::string Registry::Text() const {
  std::ostringstream text;
  prometheus::TextSerializer().Serialize(text, Collect());
  return std::move(text).str();
}

}  // namespace baton::metrics
