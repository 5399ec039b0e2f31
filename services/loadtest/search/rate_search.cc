#include "services/loadtest/search/rate_search.h"

#include <algorithm>
#include <cmath>
#include <optional>

namespace baton::loadtest {

RateSearch::RateSearch(double target, double least, double most, double tolerance)
    : target_(target), least_(least), most_(most), tolerance_(tolerance) {}

std::optional<double> RateSearch::Next() const {
  if (failed_.has_value() && *failed_ <= least_) {
    return std::nullopt;
  }
  if (!best_.has_value()) {
    return least_;
  }
  if (!failed_.has_value()) {
    return *best_ >= most_ ? std::nullopt : std::optional(std::min(2 * *best_, most_));
  }
  if (*failed_ <= *best_ * (1 + tolerance_)) {
    return std::nullopt;
  }
  return std::sqrt(*best_ * *failed_);
}

void RateSearch::Add(double rate, double share) {
  if (share < target_) {
    failed_ = failed_.has_value() ? std::min(*failed_, rate) : rate;
    if (best_.has_value() && *best_ >= *failed_) {
      best_.reset();
    }
  } else if (!failed_.has_value() || rate < *failed_) {
    best_ = best_.has_value() ? std::max(*best_, rate) : rate;
  }
}

}  // namespace baton::loadtest
