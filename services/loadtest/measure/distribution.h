// A set of values as its mean, quantiles and curve.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace baton::loadtest {

// Keeps every value, so that quantiles are exact; four bytes each: an hour at 20,000 tokens/s is
// 288 MB, which a histogram would save at the price of its buckets' error. Not thread-safe.
class Distribution {
 public:
  void Add(double value) {
    values_.push_back(static_cast<float>(value));
    sum_ += value;
    sorted_ = false;
  }

  int64_t count() const { return static_cast<int64_t>(values_.size()); }
  double sum() const { return sum_; }
  // 0 without values, like the ones below.
  double mean() const;
  // `q` from 0 to 1, interpolated linearly between neighbours, as numpy.percentile does by default
  // and therefore `vllm bench serve`.
  double Quantile(double q) const;
  double min() const { return Quantile(0.0); }
  double max() const { return Quantile(1.0); }
  // Points (value, share of values <= it) of the cumulative distribution: every percent and, finer
  // towards the end, up to 99.9 %.
  std::vector<std::pair<double, double>> Curve() const;

 private:
  std::span<const float> Sorted() const;

  mutable std::vector<float> values_;
  mutable bool sorted_ = true;
  double sum_ = 0.0;
};

}  // namespace baton::loadtest
