// What varies from request to request.
#include <map>
#include <random>
#include <string>

#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "services/loadtest/stream/request_mix.h"
#include "services/loadtest/stream/request_record.h"
#include "services/loadtest/workload/length_distribution.h"
#include "services/loadtest/workload/weighted_choice.h"

namespace baton::loadtest {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr uint64_t kSeed = 42;

TEST(WeightedChoiceTest, DrawsInTheGivenShares) {
  const auto choice = WeightedChoice::Parse("dense@3;diffkv:high=k4v4,low=k4v2;fp8@0.5");
  ASSERT_TRUE(choice.ok()) << choice.status();
  EXPECT_THAT(choice->values(), ElementsAre("dense", "diffkv:high=k4v4,low=k4v2", "fp8"));
  std::mt19937_64 random(kSeed);
  std::map<std::string, int> drawn;
  for (int i = 0; i < 45'000; ++i) {
    ++drawn[choice->Sample(random)];
  }
  EXPECT_NEAR(drawn["dense"], 30'000, 400);
  EXPECT_NEAR(drawn["diffkv:high=k4v4,low=k4v2"], 10'000, 400);
  EXPECT_NEAR(drawn["fp8"], 5'000, 400);
}

TEST(WeightedChoiceTest, RefusesWeightsThatAreNone) {
  for (const char* text : {"a@", "a@x", "a@0", "a@-1", "a;b@nan"}) {
    EXPECT_EQ(WeightedChoice::Parse(text).status().code(), absl::StatusCode::kInvalidArgument)
        << text;
  }
}

TEST(LengthDistributionTest, StaysWithinItsShape) {
  std::mt19937_64 random(kSeed);
  EXPECT_EQ(LengthDistribution::Parse("512")->Sample(random), 512);
  const auto uniform = LengthDistribution::Parse("uniform:10..12");
  const auto normal = LengthDistribution::Parse("normal:100,30");
  const auto lognormal = LengthDistribution::Parse("lognormal:200,1");
  ASSERT_TRUE(uniform.ok() && normal.ok() && lognormal.ok());
  std::map<int64_t, int> seen;
  double normal_sum = 0;
  int above_median = 0;
  constexpr int kDraws = 20'000;
  for (int i = 0; i < kDraws; ++i) {
    ++seen[uniform->Sample(random)];
    const int64_t length = normal->Sample(random);
    EXPECT_GE(length, 1);
    normal_sum += static_cast<double>(length);
    above_median += lognormal->Sample(random) > 200 ? 1 : 0;
  }
  EXPECT_EQ(seen.size(), 3u);
  EXPECT_EQ(seen.begin()->first, 10);
  EXPECT_NEAR(normal_sum / kDraws, 100, 1);
  EXPECT_NEAR(above_median, 0.5 * kDraws, 300);
}

TEST(LengthDistributionTest, RefusesWhatIsNoLength) {
  for (const char* text : {"",
                           "0",
                           "-5",
                           "x",
                           "uniform:5",
                           "uniform:9..3",
                           "uniform:0..3",
                           "normal:5",
                           "normal:5,-1",
                           "normal:5,9",
                           "lognormal:5,9",
                           "1e12",
                           "gauss:5,1",
                           "nan"}) {
    EXPECT_EQ(LengthDistribution::Parse(text).status().code(), absl::StatusCode::kInvalidArgument)
        << text;
  }
}

TEST(RequestMixTest, DrawsFaultsAndDeadlinesInTheirShares) {
  const auto mix = RequestMix::Make({.kv_policies = "dense",
                                     .deadlines = "none@1;2s@1",
                                     .cancel_share = 0.3,
                                     .cancel_within = absl::Milliseconds(500),
                                     .slow_share = 0.2,
                                     .slow_delay = absl::Milliseconds(7),
                                     .seed = kSeed});
  ASSERT_TRUE(mix.ok()) << mix.status();
  int cancelled = 0;
  int slow = 0;
  int with_deadline = 0;
  constexpr int kDraws = 20'000;
  for (int i = 0; i < kDraws; ++i) {
    const RequestTraits traits = mix->Draw(i);
    with_deadline += traits.deadline == absl::Seconds(2) ? 1 : 0;
    cancelled += traits.fault == Fault::kCancel ? 1 : 0;
    slow += traits.fault == Fault::kSlowReader ? 1 : 0;
    EXPECT_EQ(traits.fault == Fault::kCancel, traits.faults.cancel_after.has_value());
    EXPECT_LE(traits.faults.cancel_after.value_or(absl::ZeroDuration()), absl::Milliseconds(500));
    EXPECT_EQ(traits.fault == Fault::kSlowReader,
              traits.faults.read_delay == absl::Milliseconds(7));
  }
  EXPECT_NEAR(cancelled, 0.3 * kDraws, 250);
  EXPECT_NEAR(slow, 0.2 * kDraws, 250);
  EXPECT_NEAR(with_deadline, 0.5 * kDraws, 250);
}

TEST(RequestMixTest, ADrawDependsOnItsIndexOnly) {
  const auto mix = RequestMix::Make({.kv_policies = "a;b;c", .cancel_share = 0.5, .seed = kSeed});
  ASSERT_TRUE(mix.ok());
  const RequestTraits first = mix->Draw(17);
  mix->Draw(3);
  const RequestTraits second = mix->Draw(17);
  EXPECT_EQ(first.kv_policy, second.kv_policy);
  EXPECT_EQ(first.faults.cancel_after, second.faults.cancel_after);
}

TEST(RequestMixTest, RefusesSharesAndDeadlinesThatAreNone) {
  EXPECT_FALSE(RequestMix::Make({.cancel_share = 0.7, .slow_share = 0.7}).ok());
  EXPECT_FALSE(RequestMix::Make({.cancel_share = -0.1}).ok());
  const auto mix = RequestMix::Make({.deadlines = "none;soon"});
  EXPECT_THAT(std::string(mix.status().message()), HasSubstr("\"soon\""));
}

}  // namespace
}  // namespace baton::loadtest
