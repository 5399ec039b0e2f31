// The search for the highest good rate, against servers whose answer is known.
#include <algorithm>
#include <optional>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "services/loadtest/measure/slo.h"
#include "services/loadtest/search/goodput_search.h"
#include "services/loadtest/search/rate_search.h"

namespace baton::loadtest {
namespace {

using ::testing::ElementsAre;

// Rates that a search tries when everything up to `limit` passes.
std::vector<double> Tries(RateSearch& search, double limit) {
  std::vector<double> tried;
  while (const auto rate = search.Next()) {
    tried.push_back(*rate);
    search.Add(*rate, *rate <= limit ? 1.0 : 0.0);
    if (tried.size() > 100) {
      ADD_FAILURE() << "no end";
      break;
    }
  }
  return tried;
}

TEST(RateSearchTest, FindsTheLimitWithinItsTolerance) {
  for (const double limit : {1.0, 1.5, 7.3, 100.0, 640.0, 999.0}) {
    RateSearch search(0.9, 1.0, 1000.0, 0.02);
    const size_t tries = Tries(search, limit).size();
    ASSERT_TRUE(search.best().has_value());
    EXPECT_LE(*search.best(), limit);
    EXPECT_GE(*search.best() * 1.02, std::min(limit, 1000.0) * 0.9999);
    EXPECT_LE(tries, 17u) << limit;
  }
}

TEST(RateSearchTest, StopsAtTheHighestRateAndBelowTheLowest) {
  RateSearch all(0.9, 1.0, 10.0, 0.05);
  EXPECT_THAT(Tries(all, 1e9), ElementsAre(1.0, 2.0, 4.0, 8.0, 10.0));
  EXPECT_EQ(all.best(), 10.0);
  RateSearch nothing(0.9, 1.0, 10.0, 0.05);
  EXPECT_THAT(Tries(nothing, 0.5), ElementsAre(1.0));
  EXPECT_EQ(nothing.best(), std::nullopt);
}

TEST(RateSearchTest, ARateThatPassesAboveOneThatFailedDoesNotCount) {
  RateSearch search(0.9, 1.0, 100.0, 0.05);
  search.Add(4.0, 0.5);
  search.Add(8.0, 1.0);
  EXPECT_EQ(search.best(), std::nullopt);
  search.Add(2.0, 0.95);
  EXPECT_EQ(search.best(), 2.0);
}

nlohmann::ordered_json SummaryOf(double share) {
  const nlohmann::ordered_json p99 = {{"p99", 1.0}};
  return {
      {"goodput", {{{"slo", "server"}, {"share", share}, {"requests_per_s", 1.0}, {"asked", 100}}}},
      {"requests", {{"failed", 0}}},
      {"latency_ms", {{"scheduled_ttft", p99}, {"tpot", p99}, {"itl", p99}}},
      {"load_test", {{"bottlenecks", nlohmann::ordered_json::array()}}}};
}

TEST(GoodputSearchTest, BothTargetsAreFoundAndShareTheirProbes) {
  // The share falls from 1 at 20/s to 0 at 120/s: 0.99 at 21/s, 0.9 at 30/s.
  int probes = 0;
  const auto found = SearchGoodput(
      {.slo = ParseSlos("server")->front(), .least = 1, .most = 1000, .tolerance = 0.01},
      [&probes](double rate) -> absl::StatusOr<nlohmann::ordered_json> {
        ++probes;
        return SummaryOf(std::clamp((120 - rate) / 100, 0.0, 1.0));
      });
  ASSERT_TRUE(found.ok()) << found.status();
  const auto& results = found->at("results");
  EXPECT_EQ(results[0]["target"], 0.9);
  EXPECT_NEAR(results[0]["rate"].get<double>(), 30.0, 0.31);
  EXPECT_EQ(results[1]["target"], 0.99);
  EXPECT_NEAR(results[1]["rate"].get<double>(), 21.0, 0.22);
  EXPECT_FALSE(results[1]["at_most"].get<bool>());
  EXPECT_EQ(found->at("probes").size(), static_cast<size_t>(probes));
  EXPECT_LE(probes, 20);
}

TEST(GoodputSearchTest, AServerThatIsNeverGoodHasNoRate) {
  const auto found = SearchGoodput(
      {.slo = ParseSlos("server")->front()},
      [](double) -> absl::StatusOr<nlohmann::ordered_json> { return SummaryOf(0.5); });
  ASSERT_TRUE(found.ok());
  EXPECT_TRUE(found->at("results")[0]["rate"].is_null());
  EXPECT_EQ(found->at("probes").size(), 1u);
}

TEST(GoodputSearchTest, AServerThatIsGoodAtTheHighestRateMayDoBetter) {
  const auto found = SearchGoodput(
      {.slo = ParseSlos("server")->front(), .least = 1, .most = 10},
      [](double) -> absl::StatusOr<nlohmann::ordered_json> { return SummaryOf(1.0); });
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(found->at("results")[1]["rate"], 10.0);
  EXPECT_TRUE(found->at("results")[1]["at_most"].get<bool>());
}

TEST(GoodputSearchTest, AProbesErrorEndsIt) {
  const auto found = SearchGoodput({.slo = ParseSlos("server")->front()},
                                   [](double) -> absl::StatusOr<nlohmann::ordered_json> {
                                     return absl::UnavailableError("gone");
                                   });
  EXPECT_EQ(found.status().code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace baton::loadtest
