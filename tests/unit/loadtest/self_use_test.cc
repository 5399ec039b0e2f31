// What the load test knows of the machine that it runs on, and when that was too little.
#include "services/loadtest/measure/self_use.h"

#include <fstream>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "services/loadtest/measure/cpu_quota.h"

namespace baton::loadtest {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A cgroup's file with `text`, of this test alone: tests run beside each other.
std::string CpuMax(const std::string& text) {
  const std::string path =
      absl::StrCat(::testing::TempDir(),
                   ::testing::UnitTest::GetInstance()->current_test_info()->name(),
                   "_cpu.max");
  std::ofstream(path) << text;
  return path;
}

TEST(CpuQuotaTest, IsTheQuotaInCores) {
  EXPECT_EQ(CpuQuota(CpuMax("150000 100000\n")), 1.5);
  EXPECT_EQ(CpuQuota(CpuMax("50000 200000\n")), 0.25);
  EXPECT_EQ(CpuQuota(CpuMax("400000 100000")), 4.0);
}

TEST(CpuQuotaTest, IsNotKnownWithoutALimitOrInAnotherForm) {
  EXPECT_EQ(CpuQuota("nowhere/cpu.max"), std::nullopt);
  for (const char* text : {"max 100000\n",
                           "max\n",
                           "",
                           "150000\n",
                           "150000 max\n",
                           "0 100000\n",
                           "150000 0\n",
                           "-1 100000\n",
                           "1.5 100000\n",
                           "99999999999999999999 100000\n",
                           "150000 100000 100000\n",
                           "cores"}) {
    EXPECT_EQ(CpuQuota(CpuMax(text)), std::nullopt) << text;
  }
}

TEST(SelfUseTest, CoresAreThoseOfTheAffinityOrOfASmallerQuota) {
  const double cores = AvailableCores("nowhere/cpu.max");
  EXPECT_GE(cores, 1.0);
  EXPECT_EQ(AvailableCores(CpuMax("max 100000\n")), cores);
  EXPECT_EQ(AvailableCores(CpuMax("100000000000 100000\n")), cores);
  EXPECT_EQ(AvailableCores(CpuMax("50000 100000\n")), 0.5);
}

TEST(SelfUseTest, UsingUpAQuotaOfPartOfACoreIsABottleneck) {
  SelfUse use;
  use.wall = absl::Seconds(10);
  use.cores = 0.5;
  use.cpu = absl::Seconds(3);
  EXPECT_TRUE(Bottlenecks(use).empty());
  use.cpu = absl::Milliseconds(4500);
  EXPECT_THAT(Bottlenecks(use), ElementsAre(HasSubstr("used 0.45 of the 0.5 cores")));
}

}  // namespace
}  // namespace baton::loadtest
