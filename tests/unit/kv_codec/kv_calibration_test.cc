#include "common/kv/codec/kv_calibration.h"

#include <gtest/gtest.h>

#include <set>
#include <vector>

namespace baton::kv {
namespace {

TEST(KvCalibrationTest, EmptyListsLeaveLayersAsTheyAre) {
  const KvCalibration calibration;
  EXPECT_EQ(calibration.floor(5), KvFloor::kNone);
  EXPECT_EQ(calibration.budget_weight(5), 1.0f);
}

TEST(KvCalibrationTest, TheDigestOfFloorsTellsListsApartAndIsZeroForNone) {
  EXPECT_EQ(FloorDigest({}), 0u);
  EXPECT_EQ(FloorDigest(std::vector<KvFloor>(9, KvFloor::kNone)), 0u);
  std::set<uint64_t> digests = {0};
  for (const std::vector<KvFloor>& floors :
       std::vector<std::vector<KvFloor>>{{KvFloor::kLow, KvFloor::kNone},
                                         {KvFloor::kNone, KvFloor::kLow},
                                         {KvFloor::kHigh, KvFloor::kNone},
                                         {KvFloor::kLow, KvFloor::kNone, KvFloor::kNone}}) {
    EXPECT_TRUE(digests.insert(FloorDigest(floors)).second);
  }
}

TEST(KvCalibrationTest, ABudgetIsScaledToTheNearestTokenAndNeverToNone) {
  EXPECT_EQ(ScaledBudget(100, 1.0f), 100);
  EXPECT_EQ(ScaledBudget(100, 0.504f), 50);
  EXPECT_EQ(ScaledBudget(101, 0.5f), 51);
  EXPECT_EQ(ScaledBudget(100, 0.0f), 1);
  EXPECT_EQ(ScaledBudget(1 << 20, 64.0f), 1 << 26);
}

}  // namespace
}  // namespace baton::kv
