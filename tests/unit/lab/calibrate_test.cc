// How a calibration measures, chooses and draws.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "common/eval/policy_sums.h"
#include "common/eval/result_row.h"
#include "common/kv/calibration/calibration_file.h"
#include "common/kv/codec/kv_policy.h"
#include "common/kv/codec/policy_params.h"
#include "services/lab/calibrate/choose.h"
#include "services/lab/calibrate/curve_svg.h"
#include "services/lab/calibrate/sweep.h"
#include "services/lab/plot/quality_svg.h"

namespace baton::lab {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

eval::ResultRow Row(const std::string& id, const std::string& kv, bool correct, int64_t bytes) {
  eval::ResultRow row;
  row.id = id;
  row.task = id.substr(0, 1);
  row.kv = kv;
  row.correct = correct;
  row.prompt_tokens = 100;
  row.kv_logical_bytes = 1000;
  row.kv_resident_bytes = bytes;
  return row;
}

Candidate Make(int64_t cases, int64_t lost, int64_t gained, double bytes) {
  Candidate candidate;
  candidate.point = {.kv = "x",
                     .cases = cases,
                     .correct = cases - lost + gained,
                     .lost = lost,
                     .gained = gained,
                     .bytes_per_token = bytes,
                     .bytes_share = bytes / 100.0};
  return candidate;
}

TEST(MeasureTest, ComparesCaseByCaseWithDense) {
  std::vector<eval::ResultRow> rows = {Row("a1", "dense", true, 1000),
                                       Row("a1", "diffkv", false, 300),
                                       Row("a2", "diffkv", true, 500),
                                       Row("a2", "dense", false, 1000),
                                       Row("b1", "dense", true, 1000),
                                       Row("b1", "diffkv", true, 400),
                                       Row("b2", "diffkv", true, 9000)};
  rows[1].attended_share = 0.25;
  rows[2].attended_share = 0.75;
  rows[1].kv_wire_bytes = 600;
  const std::map<std::string, Candidate> measured = Measure(rows);
  ASSERT_TRUE(measured.contains("diffkv"));
  const Candidate* candidate = &measured.at("diffkv");
  // b2 has no dense row to compare with.
  EXPECT_EQ(candidate->point.cases, 3);
  EXPECT_EQ(candidate->point.correct, 2);
  EXPECT_EQ(candidate->point.lost, 1);
  EXPECT_EQ(candidate->point.gained, 1);
  EXPECT_EQ(candidate->net_loss(), 0);
  EXPECT_DOUBLE_EQ(candidate->point.bytes_per_token, 4.0);
  EXPECT_DOUBLE_EQ(candidate->point.bytes_share, 0.4);
  EXPECT_EQ(candidate->point.attended_share, 0.5);
  EXPECT_EQ(candidate->point.wire_share, 0.6);
  EXPECT_FALSE(measured.contains("int4"));
}

TEST(ChooseTest, TheCheapestWithinTheLimitsWins) {
  constexpr LossLimits kLimits = {.total = 0.02, .task = 0.1};
  EXPECT_EQ(
      Choose({Make(100, 0, 0, 50), Make(100, 3, 1, 30), Make(100, 3, 0, 10)}, {.limits = kLimits}),
      1u);
  // A net gain is no loss, whatever was lost on the way.
  EXPECT_EQ(Choose({Make(100, 0, 0, 50), Make(100, 9, 9, 40)}, {.limits = kLimits}), 1u);
}

TEST(ChooseTest, AmongEquallyCheapMoreCorrectAnswersAndThenTheFirstWin) {
  constexpr LossLimits kLimits = {.total = 0.05, .task = 0.1};
  EXPECT_EQ(
      Choose({Make(100, 2, 0, 50), Make(100, 1, 0, 50), Make(100, 1, 0, 50)}, {.limits = kLimits}),
      1u);
}

TEST(ChooseTest, WithoutAGoodOneTheSmallestLossAndThenTheCheapestWin) {
  constexpr LossLimits kLimits = {.total = 0.01, .task = 0.1};
  EXPECT_EQ(
      Choose({Make(100, 9, 0, 10), Make(100, 5, 0, 60), Make(100, 6, 1, 50)}, {.limits = kLimits}),
      2u);
  EXPECT_FALSE(Choose({}, {.limits = kLimits}).has_value());
}

TEST(ChooseTest, AttendedTokensAreACostOfTheirOwn) {
  Candidate few = Make(100, 0, 0, 90);
  few.point.attended_share = 0.1;
  EXPECT_EQ(
      Choose({Make(100, 0, 0, 10), few}, {.limits = {.total = 0.01}, .cost = Cost::kAttended}), 1u);
}

TEST(ChooseTest, WithALimitOfBytesTheSmallestLossThatTheyGiveWins) {
  const auto of_share = [](int64_t lost, double share) {
    return Make(100, lost, 0, 100.0 * share);
  };
  const Goal goal = {.limits = {.total = 0.02, .task = 0.0}, .cap = 0.35};
  EXPECT_EQ(Choose({of_share(0, 0.5), of_share(3, 0.2), of_share(2, 0.35)}, goal), 2u);
  EXPECT_EQ(Choose({of_share(5, 0.3), of_share(3, 0.2), of_share(4, 0.35)}, goal), 1u);
  EXPECT_EQ(Choose({of_share(2, 0.2), of_share(2, 0.3), of_share(2, 0.3)}, goal), 1u)
      << "most bytes";
  EXPECT_EQ(Choose({of_share(0, 0.6), of_share(9, 0.4)}, goal), 1u) << "the fewest";
  Candidate bad_task = of_share(0, 0.3);
  bad_task.tasks = {{.cases = 10, .net = 2}};
  EXPECT_EQ(Choose({bad_task, of_share(1, 0.3)}, goal), 1u) << "limits come first";
}

TEST(ChooseTest, WithALimitOfAttendedTokensTheFewestBreakATie) {
  const auto attending = [](int64_t lost, double share) {
    Candidate candidate = Make(100, lost, 0, 90);
    candidate.point.attended_share = share;
    return candidate;
  };
  const Goal goal = {.limits = {.total = 0.01}, .cost = Cost::kAttended, .cap = 0.2};
  EXPECT_EQ(Choose({attending(0, 0.8), attending(3, 0.15), attending(2, 0.2)}, goal), 2u);
  EXPECT_EQ(Choose({attending(2, 0.2), attending(2, 0.15), Make(100, 0, 0, 10)}, goal), 1u);
}

TEST(ChooseTest, BytesSentHaveALimitOfTheirOwn) {
  const auto sent = [](int64_t lost, double wire_share) {
    Candidate candidate = Make(100, lost, 0, 90);
    candidate.point.wire_share = wire_share;
    return candidate;
  };
  Goal goal = {.limits = {.total = 0.02}, .cost = Cost::kWire};
  EXPECT_EQ(Choose({sent(0, 0.4), sent(1, 0.3), sent(3, 0.2)}, goal), 1u);
  goal.cap = 0.3;
  EXPECT_EQ(Choose({sent(0, 0.4), sent(2, 0.25), sent(1, 0.3)}, goal), 2u);
  EXPECT_EQ(Choose({Make(100, 0, 0, 10), sent(2, 0.3)}, goal), 1u) << "unknown is all bytes";
}

TEST(ChooseTest, EveryTaskHasItsOwnLimitOfAtLeastOneCase) {
  Candidate candidate = Make(100, 2, 2, 10);
  candidate.tasks = {{.cases = 10, .net = 1}, {.cases = 90, .net = -1}};
  EXPECT_TRUE(candidate.Within({.total = 0.0, .task = 0.0}));
  candidate.tasks[0].net = 2;
  EXPECT_FALSE(candidate.Within({.total = 0.0, .task = 0.1}));
  EXPECT_TRUE(candidate.Within({.total = 0.0, .task = 0.2}));
}

TEST(ChooseTest, AShareWrittenInDecimalsCountsWholeCases) {
  EXPECT_TRUE(Make(100, 7, 0, 1).Within({.total = 0.07, .task = 0.0}));
  EXPECT_FALSE(Make(100, 8, 0, 1).Within({.total = 0.07, .task = 0.0}));
}

// Every policy of every stage is one that the grammar has.
TEST(SweepTest, EveryStageStartsFromWhatWasChosenAndCanBeWritten) {
  std::vector<kv::KvFormatPolicy> policies;
  for (const kv::DiffKvPolicy& chosen : DiffKvTiersAndAlphaHigh()) {
    policies.push_back({.resident = chosen});
    for (const auto& stage : {DiffKvAlphaLow(chosen), DiffKvWindow(chosen)}) {
      for (const kv::DiffKvPolicy& policy : stage) {
        EXPECT_EQ(policy.high, chosen.high);
        EXPECT_EQ(policy.alpha_high, chosen.alpha_high);
        policies.push_back({.resident = policy});
      }
    }
  }
  for (const int64_t width : {8, 128, 1024, 8192}) {
    for (const kv::ShadowKvPolicy& chosen : ShadowKvSelectors(width)) {
      EXPECT_EQ(chosen.rank, std::min<int64_t>(width, 1024));
      for (const auto& stage :
           {ShadowKvBudgets(chosen), ShadowKvRanks(chosen, width), ShadowKvValues(chosen)}) {
        for (const kv::ShadowKvPolicy& policy : stage) {
          EXPECT_EQ(policy.selection, chosen.selection);
          policies.push_back({.resident = policy});
        }
      }
    }
  }
  for (const kv::KvFormatPolicy& policy : policies) {
    const auto parsed = kv::ParseKvPolicy(policy.CanonicalString());
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_EQ(*parsed->format(), policy);
  }
}

TEST(CurveSvgTest, DrawsAxesLegendAndEveryPoint) {
  kv::CalibrationFile file;
  const auto spelled = [](const char* text) {
    return kv::ParseKvPolicy(text)->CanonicalString(kv::KvSpelling::kExplicit);
  };
  file.curve = {{.kv = "dense", .cases = 10, .correct = 9, .bytes_share = 1.01},
                {.kv = spelled("diffkv"), .cases = 10, .correct = 8, .bytes_share = 0.3},
                {.kv = spelled("shadowkv:v=v2"), .cases = 10, .correct = 7, .bytes_share = 0.4}};
  file.made.cases = 10;
  const std::string svg = CurveToSvg(file);
  for (const char* part : {"<svg ",
                           "resident KV bytes, % of bf16",
                           "correct answers, %",
                           ">dense</text>",
                           ">shadowkv</text>",
                           "8/10 correct",
                           "7/10 correct",
                           "diffkv chosen",
                           "</svg>"}) {
    EXPECT_THAT(svg, HasSubstr(part));
  }
  EXPECT_THAT(svg, Not(HasSubstr("shadowkv chosen")));
  EXPECT_THAT(svg, Not(HasSubstr("nan")));
}

TEST(CurveSvgTest, AnEmptyCurveHasAxesAndNamesFromOutsideStayText) {
  EXPECT_THAT(CurveToSvg({}), HasSubstr("correct answers, %"));
  kv::CalibrationFile file;
  file.curve = {{.kv = "diffkv:<script>&\"", .cases = 1}};
  EXPECT_THAT(CurveToSvg(file), HasSubstr("diffkv:&lt;script&gt;&amp;&quot;"));
}

TEST(QualitySvgTest, HasAPointForEachPolicyAndALegendOfTheFormatsThatOccur) {
  std::vector<eval::ResultRow> rows = {Row("a1", "dense", true, 1000),
                                       Row("a1", "hidden8+diffkv", false, 300)};
  rows[1].kv_wire_bytes = 100;
  const std::string svg = QualitySvg("a <title>", PlotPoints(eval::Summarize(rows)));
  EXPECT_THAT(svg, HasSubstr("a &lt;title&gt;"));
  EXPECT_THAT(svg, HasSubstr("dense: 1/1 correct, net loss 0, 100.0% of the bytes"));
  EXPECT_THAT(svg, HasSubstr("hidden8+diffkv: 0/1 correct, net loss 1, 30.0% of the bytes"));
  EXPECT_THAT(svg, HasSubstr(">hidden</text>"));
  EXPECT_THAT(svg, Not(HasSubstr(">shadowkv</text>")));
}

}  // namespace
}  // namespace baton::lab
