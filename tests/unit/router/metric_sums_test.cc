#include "services/router/status/metric_sums.h"

#include "gtest/gtest.h"

#include "common/metrics/metric_families.h"
#include "common/metrics/registry.h"

namespace baton::router {
namespace {

using nlohmann::ordered_json;

TEST(MetricSumsTest, SumsCountersOverAllAndByALabel) {
  metrics::Registry registry({.model_name = "m", .role = "router"});
  registry.Get(metrics::kKvWireBytes, {"dense", "grpc"}).Increment(3);
  registry.Get(metrics::kKvWireBytes, {"diffkv", "grpc"}).Increment(4);
  registry.Get(metrics::kKvWireBytes, {"dense", "ucx"});
  const auto families = registry.Collect();
  const MetricSums sums(families);
  EXPECT_EQ(sums.Sum(metrics::kKvWireBytes.name), 7);
  EXPECT_EQ(sums.Sum("no_such_metric"), 0);
  EXPECT_EQ(sums.SumsBy(metrics::kKvWireBytes.name, "transport"), ordered_json({{"grpc", 7.0}}));
  EXPECT_EQ(sums.Rows(metrics::kKvWireBytes.name)[0],
            ordered_json({{"format", "dense"}, {"transport", "grpc"}, {"value", 3.0}}));
}

TEST(MetricSumsTest, QuantilesLieLinearlyWithinTheirBucket) {
  metrics::Registry registry({.model_name = "m", .role = "router"});
  auto& histogram = registry.Get(metrics::kTimeToFirstToken);
  for (int i = 0; i < 100; ++i) {
    histogram.Observe(0.015);  // in (0.01, 0.02]
  }
  const auto families = registry.Collect();
  const ordered_json json = MetricSums(families).Histogram(metrics::kTimeToFirstToken.name);
  EXPECT_EQ(json["count"], 100);
  EXPECT_NEAR(json["sum"], 1.5, 1e-9);
  EXPECT_NEAR(json["p50"], 0.015, 1e-9);
  EXPECT_NEAR(json["p99"], 0.0199, 1e-9);
  EXPECT_TRUE(json["buckets"].back()[0].is_null());
  EXPECT_EQ(json["buckets"].back()[1], 100);
}

TEST(MetricSumsTest, QuantileBeyondTheLastBoundIsThatBound) {
  metrics::Registry registry({.model_name = "m", .role = "router"});
  registry.Get(metrics::kTimeToFirstToken).Observe(1e6);
  const auto families = registry.Collect();
  const ordered_json json = MetricSums(families).Histogram(metrics::kTimeToFirstToken.name);
  EXPECT_EQ(json["p50"], metrics::kTimeToFirstTokenBuckets.back());
}

TEST(MetricSumsTest, HistogramWithoutObservationsHasNoQuantiles) {
  metrics::Registry registry({.model_name = "m", .role = "router"});
  registry.Get(metrics::kStageDuration, {metrics::stage::kAdmit});
  const auto families = registry.Collect();
  const MetricSums sums(families);
  EXPECT_TRUE(sums.HistogramsBy(metrics::kStageDuration.name, "stage")["admit"]["p50"].is_null());
  EXPECT_TRUE(sums.Histogram(metrics::kTimeToFirstToken.name).is_null());
}

}  // namespace
}  // namespace baton::router
