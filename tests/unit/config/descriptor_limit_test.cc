#include "common/config/descriptor_limit.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

namespace baton::config {
namespace {

// Puts the limit back that the process began with.
class DescriptorLimitTest : public testing::Test {
 protected:
  void SetUp() override { before_ = Limit(); }
  void TearDown() override { ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before_), 0); }

  static rlimit Limit() {
    rlimit limit = {};
    EXPECT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
    return limit;
  }
  void Allow(rlim_t descriptors) {
    const rlimit limit = {.rlim_cur = descriptors, .rlim_max = before_.rlim_max};
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  }

  rlimit before_ = {};
};

TEST_F(DescriptorLimitTest, AFewBecomeEnough) {
  Allow(64);
  RaiseDescriptorLimit(100);
  EXPECT_EQ(Limit().rlim_cur, 100);
  EXPECT_EQ(Limit().rlim_max, before_.rlim_max);
}

TEST_F(DescriptorLimitTest, NoMoreThanTheHardLimit) {
  Allow(64);
  RaiseDescriptorLimit(RLIM_INFINITY);
  EXPECT_EQ(Limit().rlim_cur, before_.rlim_max);
}

TEST_F(DescriptorLimitTest, MoreThanEnoughStay) {
  Allow(128);
  RaiseDescriptorLimit(100);
  EXPECT_EQ(Limit().rlim_cur, 128);
}

}  // namespace
}  // namespace baton::config
