#include "services/loadtest/arrivals/arrival_schedule.h"

#include <memory>
#include <optional>
#include <utility>

#include "absl/time/time.h"

#include "services/loadtest/arrivals/rate_profile.h"
#include "services/loadtest/arrivals/unit_intervals.h"

namespace baton::loadtest {
namespace {

// A process of rate 1 in the time of expected arrivals, mapped back to seconds.
class RateSchedule final : public ArrivalSchedule {
 public:
  RateSchedule(RateProfile profile, const UnitIntervals& intervals)
      : profile_(std::move(profile)), intervals_(intervals) {}

  std::optional<absl::Duration> Next() override {
    const std::optional<double> seconds = profile_.TimeOf(expected_);
    if (!seconds.has_value()) {
      return std::nullopt;
    }
    expected_ += intervals_.Next();
    return absl::Seconds(*seconds);
  }

 private:
  const RateProfile profile_;
  UnitIntervals intervals_;
  double expected_ = 0.0;
};

}  // namespace

std::unique_ptr<ArrivalSchedule> MakeRateSchedule(RateProfile profile,
                                                  const UnitIntervals& intervals) {
  return std::make_unique<RateSchedule>(std::move(profile), intervals);
}

}  // namespace baton::loadtest
