#include "services/loadtest/arrivals/unit_intervals.h"

#include <cmath>
#include <random>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace baton::loadtest {
namespace {

// From the upper 53 bits, the same with every library; in [0, 1).
double Uniform(std::mt19937_64& random) { return static_cast<double>(random() >> 11) * 0x1p-53; }

}  // namespace

absl::StatusOr<ArrivalProcess> ParseArrivalProcess(std::string_view name) {
  if (name == "constant") {
    return ArrivalProcess::kConstant;
  }
  if (name == "poisson") {
    return ArrivalProcess::kPoisson;
  }
  if (name == "gamma") {
    return ArrivalProcess::kGamma;
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "arrival process \"", std::string(name), "\" is none of constant, poisson, gamma"));
}

UnitIntervals::UnitIntervals(ArrivalProcess process, double burstiness, uint64_t seed)
    : process_(process), random_(seed), gamma_(burstiness, 1.0 / burstiness) {}

double UnitIntervals::Next() {
  switch (process_) {
    case ArrivalProcess::kConstant:
      return 1.0;
    case ArrivalProcess::kPoisson:
      return -std::log1p(-Uniform(random_));
    case ArrivalProcess::kGamma:
      return gamma_(random_);
  }
  return 1.0;
}

}  // namespace baton::loadtest
