// Quantiles, exact.
#include "services/loadtest/measure/distribution.h"

#include "gtest/gtest.h"

namespace baton::loadtest {
namespace {

TEST(DistributionTest, QuantilesAreInterpolatedAsNumpyDoes) {
  Distribution values;
  for (const double value : {40.0, 10.0, 30.0, 20.0}) {
    values.Add(value);
  }
  EXPECT_EQ(values.count(), 4);
  EXPECT_DOUBLE_EQ(values.mean(), 25.0);
  EXPECT_DOUBLE_EQ(values.min(), 10.0);
  EXPECT_DOUBLE_EQ(values.Quantile(0.5), 25.0);
  EXPECT_NEAR(values.Quantile(0.9), 37.0, 1e-6);
  EXPECT_NEAR(values.Quantile(0.99), 39.7, 1e-6);
  EXPECT_DOUBLE_EQ(values.max(), 40.0);
}

TEST(DistributionTest, ValuesMayBeAddedAfterAQuestion) {
  Distribution values;
  values.Add(2.0);
  EXPECT_DOUBLE_EQ(values.max(), 2.0);
  values.Add(1.0);
  values.Add(3.0);
  EXPECT_DOUBLE_EQ(values.Quantile(0.5), 2.0);
}

TEST(DistributionTest, NothingIsZeroAndHasNoCurve) {
  const Distribution nothing;
  EXPECT_EQ(nothing.mean(), 0.0);
  EXPECT_EQ(nothing.Quantile(0.99), 0.0);
  EXPECT_TRUE(nothing.Curve().empty());
}

TEST(DistributionTest, TheCurveRisesToOne) {
  Distribution values;
  for (int i = 0; i <= 1000; ++i) {
    values.Add(i);
  }
  const auto curve = values.Curve();
  EXPECT_DOUBLE_EQ(curve.front().first, 0.0);
  EXPECT_DOUBLE_EQ(curve.back().first, 1000.0);
  EXPECT_DOUBLE_EQ(curve.back().second, 1.0);
  for (size_t i = 1; i < curve.size(); ++i) {
    EXPECT_GE(curve[i].first, curve[i - 1].first);
    EXPECT_GT(curve[i].second, curve[i - 1].second);
    EXPECT_NEAR(curve[i].first, 1000 * curve[i].second, 1e-3);
  }
}

}  // namespace
}  // namespace baton::loadtest
