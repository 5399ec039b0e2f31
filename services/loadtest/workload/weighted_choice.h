// A mix of texts: "dense@3;diffkv@1".
#pragma once

#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace baton::loadtest {

// Values with the shares in which they are drawn. Immutable.
class WeightedChoice {
 public:
  // Values separated by ';', each with "@WEIGHT" behind it or of weight 1. An empty text is the one
  // value "". kInvalidArgument: a weight that is no number > 0.
  static absl::StatusOr<WeightedChoice> Parse(std::string_view text);

  const std::string& Sample(std::mt19937_64& random) const;
  const std::vector<std::string>& values() const { return values_; }

 private:
  std::vector<std::string> values_;
  std::vector<double> sums_;  // of the weights up to and with this one
};

}  // namespace baton::loadtest
