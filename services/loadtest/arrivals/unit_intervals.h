// Gaps between arrivals, before a rate stretches them.
#pragma once

#include <cstdint>
#include <random>
#include <string_view>

#include "absl/status/statusor.h"

namespace baton::loadtest {

enum class ArrivalProcess { kConstant, kPoisson, kGamma };

// "constant", "poisson" or "gamma"; anything else is kInvalidArgument.
absl::StatusOr<ArrivalProcess> ParseArrivalProcess(std::string_view name);

// A renewal process whose gaps have the mean 1. The same seed gives the same gaps.
class UnitIntervals {
 public:
  // `burstiness` > 0 is the shape of gamma gaps (1: Poisson, less: bursts, more: evener), as in
  // `vllm bench serve`; the other processes ignore it.
  UnitIntervals(ArrivalProcess process, double burstiness, uint64_t seed);

  double Next();

 private:
  const ArrivalProcess process_;
  std::mt19937_64 random_;
  std::gamma_distribution<double> gamma_;
};

}  // namespace baton::loadtest
