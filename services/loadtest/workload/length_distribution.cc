#include "services/loadtest/workload/length_distribution.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace baton::loadtest {
namespace {

// Splits "12,3" or "12..30" into two numbers.
bool ParsePair(const std::string& text, const char* separator, double* first, double* second) {
  const size_t at = text.find(separator);
  return at != std::string::npos && absl::SimpleAtod(text.substr(0, at), first) &&
         absl::SimpleAtod(text.substr(at + std::string(separator).size()), second);
}

bool IsLength(double value) {
  return value >= 1.0 && value <= static_cast<double>(LengthDistribution::kMaxLength);
}

}  // namespace

absl::StatusOr<LengthDistribution> LengthDistribution::Parse(std::string_view text) {
  const std::string whole(text);
  absl::string_view rest = whole;
  double first = 0.0;
  double second = 0.0;
  if (absl::ConsumePrefix(&rest, "uniform:")) {
    if (ParsePair(std::string(rest), "..", &first, &second) && IsLength(first) &&
        IsLength(second) && first <= second) {
      return LengthDistribution(Shape::kUniform, first, second);
    }
  } else if (absl::ConsumePrefix(&rest, "normal:")) {
    if (ParsePair(std::string(rest), ",", &first, &second) && IsLength(first) && second >= 0.0 &&
        second <= first) {
      return LengthDistribution(Shape::kNormal, first, second);
    }
  } else if (absl::ConsumePrefix(&rest, "lognormal:")) {
    if (ParsePair(std::string(rest), ",", &first, &second) && IsLength(first) && second >= 0.0 &&
        second <= 5.0) {
      return LengthDistribution(Shape::kLognormal, std::log(first), second);
    }
  } else if (absl::SimpleAtod(rest, &first) && IsLength(first)) {
    return LengthDistribution(Shape::kUniform, first, first);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("length \"",
                   whole,
                   "\" is none of N, uniform:N..N, normal:MEAN,DEVIATION (at most the mean) or "
                   "lognormal:MEDIAN,DEVIATION (at most 5), with lengths from 1 to ",
                   kMaxLength));
}

int64_t LengthDistribution::Sample(std::mt19937_64& random) const {
  double length = first_;
  switch (shape_) {
    case Shape::kUniform:
      return std::uniform_int_distribution<int64_t>(static_cast<int64_t>(first_),
                                                    static_cast<int64_t>(second_))(random);
    case Shape::kNormal:
      length = first_ + second_ * std::normal_distribution<double>()(random);
      break;
    case Shape::kLognormal:
      length = std::exp(first_ + second_ * std::normal_distribution<double>()(random));
      break;
  }
  return std::clamp<int64_t>(std::llround(std::min(length, 1e12)), 1, kMaxLength);
}

}  // namespace baton::loadtest
