// What the load test knows of the machine that it runs on, and when that was too little.
#include "services/loadtest/measure/self_use.h"

#include <optional>
#include <string>

#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "services/loadtest/measure/cpu_quota.h"
#include "tests/unit/loadtest/file_test.h"

namespace baton::loadtest {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class CpuQuotaTest : public FileTest {
 protected:
  CpuQuotaTest() : FileTest("cpu.max") {}
};

class SelfUseTest : public CpuQuotaTest {};

TEST_F(CpuQuotaTest, IsTheQuotaInCores) {
  EXPECT_EQ(CpuQuota(File("150000 100000\n")), 1.5);
  EXPECT_EQ(CpuQuota(File("50000 200000\n")), 0.25);
  EXPECT_EQ(CpuQuota(File("400000 100000")), 4.0);
}

TEST_F(CpuQuotaTest, IsNotKnownWithoutALimitOrInAnotherForm) {
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
    EXPECT_EQ(CpuQuota(File(text)), std::nullopt) << text;
  }
}

TEST_F(SelfUseTest, CoresAreThoseOfTheAffinityOrOfASmallerQuota) {
  const double cores = AvailableCores("nowhere/cpu.max");
  EXPECT_GE(cores, 1.0);
  EXPECT_EQ(AvailableCores(File("max 100000\n")), cores);
  EXPECT_EQ(AvailableCores(File("100000000000 100000\n")), cores);
  EXPECT_EQ(AvailableCores(File("50000 100000\n")), 0.5);
}

TEST_F(SelfUseTest, UsingUpAQuotaOfPartOfACoreIsABottleneck) {
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
