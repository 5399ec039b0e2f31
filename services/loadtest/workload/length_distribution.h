// How long prompts and answers are.
#pragma once

#include <cstdint>
#include <random>
#include <string_view>

#include "absl/status/statusor.h"

namespace baton::loadtest {

// Numbers of tokens. Immutable; the same random numbers give the same lengths.
class LengthDistribution {
 public:
  // "512"; "uniform:64..512"; "normal:512,64" (mean, standard deviation); "lognormal:512,0.5"
  // (median, standard deviation of the logarithm). kInvalidArgument otherwise.
  static absl::StatusOr<LengthDistribution> Parse(std::string_view text);

  // At least 1, at most kMaxLength.
  int64_t Sample(std::mt19937_64& random) const;

  static constexpr int64_t kMaxLength = 1 << 24;

 private:
  enum class Shape { kUniform, kNormal, kLognormal };

  LengthDistribution(Shape shape, double first, double second)
      : shape_(shape), first_(first), second_(second) {}

  Shape shape_;
  double first_;
  double second_;
};

}  // namespace baton::loadtest
