#include "services/loadtest/measure/distribution.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <utility>
#include <vector>

namespace baton::loadtest {

double Distribution::mean() const {
  return values_.empty() ? 0.0 : sum_ / static_cast<double>(values_.size());
}

std::span<const float> Distribution::Sorted() const {
  if (!sorted_) {
    std::ranges::sort(values_);
    sorted_ = true;
  }
  return values_;
}

double Distribution::Quantile(double q) const {
  const std::span<const float> sorted = Sorted();
  if (sorted.empty()) {
    return 0.0;
  }
  const double at = std::clamp(q, 0.0, 1.0) * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<size_t>(at);
  const size_t above = std::min(below + 1, sorted.size() - 1);
  return std::lerp(static_cast<double>(sorted[below]),
                   static_cast<double>(sorted[above]),
                   at - static_cast<double>(below));
}

std::vector<std::pair<double, double>> Distribution::Curve() const {
  std::vector<std::pair<double, double>> points;
  if (values_.empty()) {
    return points;
  }
  for (int percent = 0; percent < 99; ++percent) {
    points.emplace_back(Quantile(percent / 100.0), percent / 100.0);
  }
  for (int tenth = 990; tenth < 1000; ++tenth) {
    points.emplace_back(Quantile(tenth / 1000.0), tenth / 1000.0);
  }
  points.emplace_back(max(), 1.0);
  return points;
}

}  // namespace baton::loadtest
