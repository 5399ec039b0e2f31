// When requests are due.
#pragma once

#include <memory>
#include <optional>

#include "absl/time/time.h"

#include "services/loadtest/arrivals/rate_profile.h"
#include "services/loadtest/arrivals/unit_intervals.h"

namespace baton::loadtest {

// Times from the start of the run, ascending, known before anything is sent: an open loop. Not
// thread-safe.
class ArrivalSchedule {
 public:
  virtual ~ArrivalSchedule() = default;
  // Nothing after the last one.
  virtual std::optional<absl::Duration> Next() = 0;
};

// Gaps of `intervals` stretched by the rate of `profile`; the first arrival is at the start.
std::unique_ptr<ArrivalSchedule> MakeRateSchedule(RateProfile profile,
                                                  const UnitIntervals& intervals);

}  // namespace baton::loadtest
