#include "common/metrics/process_start.h"

#include <ctime>

#include "gtest/gtest.h"

namespace baton::metrics {
namespace {

// The kernel's boot time has whole seconds.
TEST(ProcessStartTest, IsOfThisProcessAndDoesNotChange) {
  const double start = ProcessStartSeconds();
  const auto now = static_cast<double>(std::time(nullptr));
  EXPECT_LE(start, now + 2);
  EXPECT_GE(start, now - 600) << "this test has not run for so long";
  EXPECT_EQ(start, ProcessStartSeconds());
}

}  // namespace
}  // namespace baton::metrics
