// The metrics of one process (of one worker, where a test runs several in a process).
#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "prometheus/collectable.h"
#include "prometheus/counter.h"
#include "prometheus/histogram.h"
#include "prometheus/labels.h"
#include "prometheus/metric_family.h"
#include "prometheus/registry.h"

#include "common/metrics/gauge_writer.h"
#include "common/metrics/metric_families.h"

namespace baton::metrics {

struct RegistryOptions {
  std::string model_name = {};
  std::string role = {};  // "router", "prefill", "decode", "both"
  // Publishes the vllm: names of vllm_aliases.h as well.
  bool vllm_aliases = false;
};

// Thread-safe. Returned counters and histograms live as long as the registry; look them up once and
// keep the reference, the look-up takes a lock.
//
//   registry.Get(kKvWireBytes, {"dense", "grpc"}).Increment(bytes);
//   registry.Get(kTimeToFirstToken).Observe(seconds);
class Registry : public prometheus::Collectable {
 public:
  using GaugeCallback = std::function<void(GaugeWriter&)>;

  explicit Registry(RegistryOptions options);

  template <size_t N>
  prometheus::Counter& Get(const CounterFamily<N>& family,
                           const std::array<std::string_view, N>& label_values = {}) {
    return GetCounter(family.name, family.help, family.labels, label_values);
  }
  template <size_t N>
  prometheus::Histogram& Get(const HistogramFamily<N>& family,
                             const std::array<std::string_view, N>& label_values = {}) {
    return GetHistogram(family.name, family.help, family.labels, label_values, family.buckets);
  }

  // `callback` is called at every scrape, from the exposer's thread, and must not block. It stays
  // until ClearGauges, which its owner calls before anything that it reads goes away.
  void AddGauges(GaugeCallback callback);
  // Removes every callback; none is running when it returns.
  void ClearGauges();

  // Families by name, metrics by labels: equal values give equal text.
  std::vector<prometheus::MetricFamily> Collect() const override;

  // The exposition text (version 0.0.4), as a scrape would return it.
  std::string Text() const;

 private:
  prometheus::Counter& GetCounter(std::string_view name,
                                  std::string_view help,
                                  std::span<const std::string_view> labels,
                                  std::span<const std::string_view> label_values);
  prometheus::Histogram& GetHistogram(std::string_view name,
                                      std::string_view help,
                                      std::span<const std::string_view> labels,
                                      std::span<const std::string_view> label_values,
                                      std::span<const double> buckets);

  const RegistryOptions options_;
  const prometheus::Labels constant_labels_;
  prometheus::Registry registry_;
  mutable absl::Mutex mutex_;
  std::vector<GaugeCallback> gauge_callbacks_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace baton::metrics
