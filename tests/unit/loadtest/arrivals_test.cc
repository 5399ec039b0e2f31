// When requests are due: exact sequences, statistics with fixed seeds, and texts that are no
// stages.
#include <algorithm>
#include <cmath>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "services/loadtest/arrivals/arrival_schedule.h"
#include "services/loadtest/arrivals/rate_profile.h"
#include "services/loadtest/arrivals/unit_intervals.h"

namespace baton::loadtest {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr uint64_t kSeed = 20261;

std::vector<double> Seconds(ArrivalSchedule& schedule, size_t most) {
  std::vector<double> times;
  while (times.size() < most) {
    const std::optional<absl::Duration> at = schedule.Next();
    if (!at.has_value()) {
      break;
    }
    times.push_back(absl::ToDoubleSeconds(*at));
  }
  return times;
}

std::vector<double> Gaps(ArrivalProcess process, double burstiness, size_t count) {
  UnitIntervals intervals(process, burstiness, kSeed);
  std::vector<double> gaps(count);
  for (double& gap : gaps) {
    gap = intervals.Next();
  }
  return gaps;
}

struct Moments {
  double mean = 0.0;
  double variation = 0.0;  // standard deviation / mean
};

Moments MomentsOf(const std::vector<double>& values) {
  double sum = 0.0;
  double squares = 0.0;
  for (const double value : values) {
    sum += value;
    squares += value * value;
  }
  const auto count = static_cast<double>(values.size());
  const double mean = sum / count;
  return {.mean = mean, .variation = std::sqrt(squares / count - mean * mean) / mean};
}

TEST(ArrivalsTest, ConstantArrivalsAreAsFarApartAsTheRateSays) {
  const auto schedule = MakeRateSchedule(RateProfile::Constant(4.0),
                                         UnitIntervals(ArrivalProcess::kConstant, 1.0, kSeed));
  EXPECT_THAT(Seconds(*schedule, 5), ElementsAre(0.0, 0.25, 0.5, 0.75, 1.0));
}

TEST(ArrivalsTest, ARampSendsWhatLiesUnderItsLine) {
  const auto profile = RateProfile::Parse("2s@0..8,1s@0,1s@2");
  ASSERT_TRUE(profile.ok()) << profile.status();
  EXPECT_EQ(profile->length(), absl::Seconds(4));
  const auto schedule =
      MakeRateSchedule(*profile, UnitIntervals(ArrivalProcess::kConstant, 1.0, kSeed));
  const std::vector<double> times = Seconds(*schedule, 100);
  // 8 under the ramp, nothing in the pause, 2 in the last second.
  ASSERT_EQ(times.size(), 10u);
  for (size_t i = 0; i < 8; ++i) {
    EXPECT_NEAR(times[i], std::sqrt(static_cast<double>(i) / 2.0), 1e-6) << i;
  }
  EXPECT_NEAR(times[8], 3.0, 1e-6);
  EXPECT_NEAR(times[9], 3.5, 1e-6);
}

TEST(ArrivalsTest, AFallingRampIsSolvedToo) {
  const auto profile = RateProfile::Parse("2s@8..0");
  ASSERT_TRUE(profile.ok()) << profile.status();
  EXPECT_NEAR(profile->TimeOf(6.0).value_or(-1), 1.0, 1e-9);
  EXPECT_NEAR(profile->TimeOf(7.999999).value_or(-1), 2.0, 1e-2);
  EXPECT_EQ(profile->TimeOf(8.0), std::nullopt);
}

TEST(ArrivalsTest, PoissonGapsHaveTheirMeanVariationAndTail) {
  SCOPED_TRACE("seed " + std::to_string(kSeed));
  const std::vector<double> gaps = Gaps(ArrivalProcess::kPoisson, 1.0, 100'000);
  const Moments moments = MomentsOf(gaps);
  EXPECT_NEAR(moments.mean, 1.0, 0.01);
  EXPECT_NEAR(moments.variation, 1.0, 0.01);
  const auto longer = std::ranges::count_if(gaps, [](double gap) { return gap > 2.0; });
  EXPECT_NEAR(static_cast<double>(longer) / 1e5, std::exp(-2.0), 0.004);
}

TEST(ArrivalsTest, PoissonGapsAreTheSameOnEveryMachine) {
  UnitIntervals intervals(ArrivalProcess::kPoisson, 1.0, 1);
  // -log1p(-u) of mt19937_64(1), upper 53 bits.
  std::mt19937_64 random(1);
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(intervals.Next(), -std::log1p(-static_cast<double>(random() >> 11) * 0x1p-53));
  }
}

TEST(ArrivalsTest, GammaGapsVaryAsTheirBurstinessSays) {
  SCOPED_TRACE("seed " + std::to_string(kSeed));
  for (const double burstiness : {0.25, 1.0, 4.0}) {
    const Moments moments = MomentsOf(Gaps(ArrivalProcess::kGamma, burstiness, 100'000));
    EXPECT_NEAR(moments.mean, 1.0, 0.02) << burstiness;
    EXPECT_NEAR(moments.variation, 1.0 / std::sqrt(burstiness), 0.03) << burstiness;
  }
}

TEST(ArrivalsTest, TheSameSeedGivesTheSameArrivals) {
  const auto times = [](uint64_t seed) {
    const auto schedule = MakeRateSchedule(RateProfile::Constant(10.0),
                                           UnitIntervals(ArrivalProcess::kGamma, 0.5, seed));
    return Seconds(*schedule, 100);
  };
  EXPECT_EQ(times(7), times(7));
  EXPECT_NE(times(7), times(8));
}

TEST(ArrivalsTest, WhatIsNoStageIsRefusedByName) {
  for (const char* text : {"",
                           "10s",
                           "@5",
                           "10s@",
                           "10s@x",
                           "10s@-1",
                           "10s@1..2..3",
                           "-1s@5",
                           "0s@5",
                           "inf@5",
                           "5@5",
                           "10s@2,",
                           "10s@nan",
                           "10s@2000000"}) {
    const auto profile = RateProfile::Parse(text);
    EXPECT_EQ(profile.status().code(), absl::StatusCode::kInvalidArgument) << text;
  }
  EXPECT_THAT(std::string(RateProfile::Parse("10s@1,oops").status().message()),
              HasSubstr("\"oops\""));
  EXPECT_THAT(std::string(RateProfile::Parse("10s@0").status().message()),
              HasSubstr("send nothing"));
}

TEST(ArrivalsTest, ArrivalProcessesAreKnownByName) {
  EXPECT_EQ(*ParseArrivalProcess("gamma"), ArrivalProcess::kGamma);
  EXPECT_EQ(ParseArrivalProcess("uniform").status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace baton::loadtest
