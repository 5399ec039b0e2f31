#include "services/loadtest/workload/weighted_choice.h"

#include <algorithm>
#include <random>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace baton::loadtest {

absl::StatusOr<WeightedChoice> WeightedChoice::Parse(std::string_view text) {
  WeightedChoice choice;
  const std::string whole(text);
  double sum = 0.0;
  for (const absl::string_view part : absl::StrSplit(whole, ';')) {
    const size_t at = part.rfind('@');
    double weight = 1.0;
    if (at != absl::string_view::npos &&
        (!absl::SimpleAtod(part.substr(at + 1), &weight) || !(weight > 0.0 && weight < 1e9))) {
      return absl::InvalidArgumentError(
          absl::StrCat("\"",
                       part,
                       "\" of the mix \"",
                       whole,
                       "\" is not VALUE or VALUE@WEIGHT with a weight > 0"));
    }
    sum += weight;
    choice.values_.emplace_back(part.substr(0, at));
    choice.sums_.push_back(sum);
  }
  return choice;
}

const std::string& WeightedChoice::Sample(std::mt19937_64& random) const {
  const double drawn = std::uniform_real_distribution<double>(0.0, sums_.back())(random);
  const auto at = std::ranges::upper_bound(sums_, drawn);
  return values_[std::min(static_cast<size_t>(at - sums_.begin()), values_.size() - 1)];
}

}  // namespace baton::loadtest
