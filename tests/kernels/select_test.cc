#include "kernels/select.h"

#include <gtest/gtest.h>

#include <string>

namespace baton::kernels {
namespace {

TEST(SelectOpsTest, KnowsTheBackEndsByName) {
  ASSERT_TRUE(SelectOps("reference").ok());
  EXPECT_EQ(*SelectOps("reference"), &ReferenceOps());
  ASSERT_TRUE(SelectOps("cpu").ok());
  EXPECT_EQ(*SelectOps("cpu"), &CpuOps());
}

TEST(SelectOpsTest, UnknownDeviceNamesTheChoices) {
  const absl::Status status = SelectOps("tpu").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(std::string(status.message()).find("cpu, cuda or reference"), std::string::npos);
}

TEST(SelectOpsTest, AbsentCudaIsAFailedPrecondition) {
  if (CudaOps() != nullptr) {
    GTEST_SKIP() << "this machine has a CUDA device";
  }
  EXPECT_EQ(SelectOps("cuda").status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST(CheckCompleteTest, NamesTheFirstEmptyEntry) {
  OpTable table = ReferenceOps();
  EXPECT_TRUE(CheckComplete(table).ok());
  table.rope = nullptr;
  const absl::Status status = CheckComplete(table);
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_NE(std::string(status.message()).find("rope"), std::string::npos);
}

TEST(CpuOpsTest, PortableIsEverywhere) {
  ASSERT_NE(CpuOpsFor(CpuIsa::kPortable), nullptr);
  EXPECT_TRUE(CheckComplete(*CpuOpsFor(CpuIsa::kPortable)).ok());
}

}  // namespace
}  // namespace baton::kernels
