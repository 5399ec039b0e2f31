#include "services/loadtest/arrivals/rate_profile.h"

#include <cmath>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"

#include "common/base/status_macros.h"

namespace baton::loadtest {
namespace {

constexpr double kMaxRate = 1e6;

bool ParseRate(const std::string& text, double* rate) {
  return absl::SimpleAtod(text, rate) && *rate >= 0.0 && *rate <= kMaxRate;
}

absl::StatusOr<Stage> ParseStage(const std::string& text) {
  const std::vector<std::string> parts = absl::StrSplit(text, '@');
  Stage stage;
  bool valid = parts.size() == 2 && absl::ParseDuration(parts[0], &stage.length) &&
               stage.length > absl::ZeroDuration() && stage.length < absl::InfiniteDuration();
  if (valid) {
    const std::vector<std::string> rates = absl::StrSplit(parts[1], "..");
    valid = rates.size() <= 2 && ParseRate(rates.front(), &stage.begin_rate) &&
            ParseRate(rates.back(), &stage.end_rate);
  }
  if (!valid) {
    return absl::InvalidArgumentError(
        absl::StrCat("stage \"",
                     text,
                     "\" is not LENGTH@RATE or LENGTH@RATE..RATE, such as 30s@2 or 1m@2..20 (rates "
                     "in requests per second, at most ",
                     kMaxRate,
                     ")"));
  }
  return stage;
}

double Expected(const Stage& stage) {
  return stage.length == absl::InfiniteDuration()
             ? HUGE_VAL
             : (stage.begin_rate + stage.end_rate) / 2 * absl::ToDoubleSeconds(stage.length);
}

// Solves begin t + slope/2 t^2 = count, in the form that loses no digits when the slope is small.
double TimeWithin(const Stage& stage, double count) {
  const double slope =
      stage.length == absl::InfiniteDuration()
          ? 0.0
          : (stage.end_rate - stage.begin_rate) / absl::ToDoubleSeconds(stage.length);
  const double root =
      std::sqrt(std::fmax(0.0, stage.begin_rate * stage.begin_rate + 2 * slope * count));
  return count <= 0.0 ? 0.0 : 2 * count / (stage.begin_rate + root);
}

}  // namespace

absl::StatusOr<RateProfile> RateProfile::Parse(std::string_view text) {
  std::vector<Stage> stages;
  double expected = 0.0;
  const std::string whole(text);
  for (const absl::string_view part : absl::StrSplit(whole, ',')) {
    BATON_ASSIGN_OR_RETURN(const Stage stage, ParseStage(std::string(part)));
    expected += Expected(stage);
    stages.push_back(stage);
  }
  if (expected <= 0.0) {
    return absl::InvalidArgumentError(
        absl::StrCat("stages \"", whole, "\" send nothing: give one of them a rate"));
  }
  return RateProfile(std::move(stages));
}

RateProfile RateProfile::Constant(double rate) {
  return RateProfile({{.length = absl::InfiniteDuration(), .begin_rate = rate, .end_rate = rate}});
}

std::optional<double> RateProfile::TimeOf(double count) const {
  double begin = 0.0;
  for (const Stage& stage : stages_) {
    const double expected = Expected(stage);
    if (count < expected) {
      return begin + TimeWithin(stage, count);
    }
    count -= expected;
    begin += absl::ToDoubleSeconds(stage.length);
  }
  return std::nullopt;
}

absl::Duration RateProfile::length() const {
  absl::Duration sum;
  for (const Stage& stage : stages_) {
    sum += stage.length;
  }
  return sum;
}

}  // namespace baton::loadtest
