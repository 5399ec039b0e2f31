// How cuBLASLt is found, and what decides its kernels; checked without a device.
#include <cublas_api.h>

#include <array>
#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "kernels/cuda/cublas/cublaslt_api.h"
#include "kernels/cuda/cublas/matmul_plan.h"
#include "kernels/cuda/cublas/matmul_plans.h"
#include "kernels/cuda/libraries/library_paths.h"

namespace baton::kernels::cuda {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Null where cuBLASLt is not installed.
std::shared_ptr<const CublasLtApi> CublasLt() {
  static const std::shared_ptr<const CublasLtApi>& api =
      *new std::shared_ptr<const CublasLtApi>([] {
        auto loaded = LoadCublasLt(LibrarySearch::OfProcess(kCublasLtVariable));
        std::cout << "cuBLASLt: " << (loaded.ok() ? (*loaded)->Description() : "none") << "\n";
        return loaded.ok() ? *loaded : nullptr;
      }());
  return api;
}

#define SKIP_WITHOUT_CUBLASLT()                  \
  if (CublasLt() == nullptr) {                   \
    GTEST_SKIP() << "cuBLASLt is not installed"; \
  }

TEST(CublasLtLibraryTest, WheelsComeBeforeTheToolkit) {
  namespace fs = std::filesystem;
  std::string name = (fs::temp_directory_path() / "baton-cublas-XXXXXX").string();
  const fs::path root = mkdtemp(name.data());
  const fs::path wheel =
      root / "env/lib/python3.12/site-packages/nvidia/cu13/lib/libcublasLt.so.13";
  const fs::path toolkit = root / "usr/local/cuda/lib64/libcublasLt.so.13";
  for (const fs::path& file : {wheel, toolkit}) {
    fs::create_directories(file.parent_path());
    std::ofstream(file) << "x";
  }
  EXPECT_THAT(LibraryPaths(kCublasLtLibrary,
                           {.virtual_env = (root / "env").string(), .root = root.string()}),
              ElementsAre(wheel.string(), toolkit.string(), "libcublasLt.so.13"));
  fs::remove_all(root);
}

TEST(CublasLtApiTest, AMissingLibraryIsNamed) {
  const auto api = LoadCublasLt({.override_file = "/nowhere/libcublasLt.so.13"});
  ASSERT_EQ(api.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(api.status().message(), HasSubstr("/nowhere/libcublasLt.so.13"));
}

TEST(CublasLtApiTest, ALibraryThatIsNoCublasLtIsNamed) {
  const auto api = LoadCublasLt({.override_file = "libm.so.6"});
  ASSERT_EQ(api.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(api.status().message(), HasSubstr("cublasLtGetVersion"));
}

TEST(CublasLtApiTest, TheVersionAndTheFileAreKnown) {
  SKIP_WITHOUT_CUBLASLT();
  EXPECT_GE(CublasLt()->version, kOldestCublasLt);
  EXPECT_THAT(CublasLt()->Description(), HasSubstr(" of /"));
}

TEST(CublasLtApiTest, ErrorsSayWhatWasDoneAndWhy) {
  SKIP_WITHOUT_CUBLASLT();
  EXPECT_TRUE(CublasLt()->ToStatus(CUBLAS_STATUS_SUCCESS, "try").ok());
  const absl::Status refused = CublasLt()->ToStatus(CUBLAS_STATUS_NOT_SUPPORTED, "try a kernel");
  EXPECT_TRUE(absl::IsUnimplemented(refused)) << refused;
  EXPECT_THAT(refused.message(), HasSubstr("try a kernel: CUBLAS_STATUS_NOT_SUPPORTED"));
}

TEST(MatmulPlansTest, WithoutADeviceTheHandleIsRefused) {
  SKIP_WITHOUT_CUBLASLT();
  const auto plans = MatmulPlans::Create(LibrarySearch::OfProcess(kCublasLtVariable));
  if (plans.ok()) {
    GTEST_SKIP() << "there is a device";
  }
  EXPECT_TRUE(absl::IsUnavailable(plans.status())) << plans.status();
  EXPECT_THAT(plans.status().message(), HasSubstr("make a handle"));
}

TEST(MatmulPlansTest, AMissingLibraryIsNamed) {
  const auto plans = MatmulPlans::Create({.override_file = "/nowhere/libcublasLt.so.13"});
  EXPECT_TRUE(absl::IsNotFound(plans.status())) << plans.status();
}

// A call whose addresses are aligned as far as anything asks for.
class MatmulShapeTest : public ::testing::Test {
 protected:
  std::byte* memory() { return memory_.data(); }
  MatmulCall Call() {
    return {.x = memory(),
            .x_stride = 64,
            .weight = memory(),
            .out = memory(),
            .out_stride = 96,
            .rows = 3,
            .out_features = 96,
            .in_features = 64};
  }

 private:
  alignas(MatmulPlan::kBiasAlignment) std::array<std::byte, 64> memory_ = {};
};

TEST_F(MatmulShapeTest, KnowsWhatAddressesAreMultiplesOf) {
  MatmulCall call = Call();
  EXPECT_EQ(MatmulShape::Of(call, 0).x_alignment, 16u);
  call.x = memory() + 16;
  EXPECT_EQ(MatmulShape::Of(call, 0).x_alignment, 16u);
  call.x = memory() + 24;
  call.weight = memory() + 4;
  call.out = memory() + 2;
  const MatmulShape shape = MatmulShape::Of(call, 0);
  EXPECT_EQ(shape.x_alignment, 8u);
  EXPECT_EQ(shape.weight_alignment, 4u);
  EXPECT_EQ(shape.out_alignment, 2u);
}

TEST_F(MatmulShapeTest, AddressesOfOneAlignmentShareAShape) {
  MatmulCall call = Call();
  const MatmulShape shape = MatmulShape::Of(call, 0);
  call.x = memory() + 32;
  call.accumulate = true;
  EXPECT_EQ(MatmulShape::Of(call, 0), shape);
  call.rows = 4;
  EXPECT_NE(MatmulShape::Of(call, 0), shape);
  call.rows = 3;
  call.bias = memory();
  EXPECT_NE(MatmulShape::Of(call, 0), shape);
}

TEST_F(MatmulShapeTest, OtherOrdersCountsAndScratchAreOtherShapes) {
  MatmulCall call = Call();
  const MatmulShape shape = MatmulShape::Of(call, 0);
  EXPECT_NE(MatmulShape::Of(call, 1), shape);
  call.by_feature = true;
  EXPECT_NE(MatmulShape::Of(call, 0), shape);
  call.by_feature = false;
  call.products = 2;
  EXPECT_NE(MatmulShape::Of(call, 0), shape);
}

TEST_F(MatmulShapeTest, MessagesNameEverySize) {
  MatmulCall call = Call();
  call.wide = true;
  EXPECT_EQ(MatmulShape::Of(call, 0).ToString(),
            "3 rows, 64 to 96 features, x_stride 64, out_stride 96, x, weight and out aligned to "
            "16, 16 and 16, wide");
  call.wide = false;
  call.by_feature = true;
  call.products = 4;
  EXPECT_EQ(MatmulShape::Of(call, 0).ToString(),
            "3 rows, 64 to 96 features, x_stride 64, out_stride 96, x, weight and out aligned to "
            "16, 16 and 16, by feature, 4 products");
}

TEST_F(MatmulShapeTest, IsDescribedWithoutADevice) {
  SKIP_WITHOUT_CUBLASLT();
  MatmulCall call = Call();
  for (const bool by_feature : {false, true}) {
    call.by_feature = by_feature;
    call.bias = by_feature ? nullptr : memory();
    call.products = by_feature ? 3 : 1;
    const absl::Status status = MatmulPlan::Make(*CublasLt(), nullptr, call, 0).status();
    // A handle is missing, nothing before it.
    EXPECT_THAT(status.message(), HasSubstr("choose a kernel")) << status;
  }
}

}  // namespace
}  // namespace baton::kernels::cuda
