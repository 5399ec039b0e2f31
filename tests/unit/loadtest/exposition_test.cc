// Prometheus' text format, and what grew between two scrapes.
#include "services/loadtest/scrape/exposition.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace baton::loadtest {
namespace {

using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;

constexpr char kBefore[] = R"(# HELP baton_requests_total Requests ended.
# TYPE baton_requests_total counter
baton_requests_total{code="OK",role="router"} 5
baton_requests_total{code="a } b",role="router"} 1 1700000000000
# TYPE baton_requests_waiting gauge
baton_requests_waiting 3
# TYPE baton_step_duration_seconds histogram
baton_step_duration_seconds_bucket{le="+Inf"} 10
baton_step_duration_seconds_sum 2.5
baton_step_duration_seconds_count 10
)";

TEST(ExpositionTest, ReadsSamplesAndTypes) {
  const Exposition exposition = ParseExposition(kBefore);
  EXPECT_EQ(exposition.samples.size(), 6u);
  EXPECT_EQ(exposition.samples.at("baton_requests_total{code=\"OK\",role=\"router\"}"), 5);
  EXPECT_EQ(exposition.samples.at("baton_requests_total{code=\"a } b\",role=\"router\"}"), 1);
  EXPECT_EQ(exposition.types.at("baton_requests_waiting"), "gauge");
  EXPECT_EQ(SumOf(exposition.samples, "baton_requests_total"), 6);
  EXPECT_EQ(SumOf(exposition.samples, "baton_requests"), 0);
}

TEST(ExpositionTest, TellsTheValueOfALabel) {
  constexpr char kSample[] = R"(steps_total{role="decode",sub_role="x"})";
  EXPECT_EQ(LabelOf(kSample, "role"), "decode");
  EXPECT_EQ(LabelOf(kSample, "sub_role"), "x");
  EXPECT_EQ(LabelOf(kSample, "le"), "");
  EXPECT_EQ(LabelOf("steps_total", "role"), "");
}

TEST(ExpositionTest, PassesOverWhatIsNoSample) {
  EXPECT_THAT(
      ParseExposition("<html>\n\nname\n} 3\nx {\nname notanumber\nname NaN\nname +Inf\n{ 1\n")
          .samples,
      IsEmpty());
}

TEST(ExpositionTest, OnlyCountersAndHistogramsGrow) {
  const Exposition before = ParseExposition(kBefore);
  Exposition after = before;
  after.samples["baton_requests_total{code=\"OK\",role=\"router\"}"] = 9;
  after.samples["baton_requests_waiting"] = 8;
  after.samples["baton_step_duration_seconds_sum"] = 3.0;
  EXPECT_THAT(CounterGrowth(before, after),
              UnorderedElementsAre(Pair("baton_requests_total{code=\"OK\",role=\"router\"}", 4),
                                   Pair("baton_step_duration_seconds_sum", 0.5)));
}

TEST(ExpositionTest, ACounterThatFellWasStartedAgain) {
  const Exposition before = ParseExposition("# TYPE c counter\nc 100\n");
  const Exposition after = ParseExposition("# TYPE c counter\nc 7\n");
  EXPECT_THAT(CounterGrowth(before, after), UnorderedElementsAre(Pair("c", 7)));
}

}  // namespace
}  // namespace baton::loadtest
