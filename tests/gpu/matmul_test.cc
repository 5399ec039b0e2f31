// matmul and pack_matrix on the device against the reference. Inputs are bf16 values, results may
// differ by a rounding to their type and by the order in which fp32 sums are added up.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "kernels/core/dtype.h"
#include "kernels/core/exec_context.h"
#include "kernels/cuda/cublas/matmul_plan.h"
#include "kernels/cuda/cublas/matmul_plans.h"
#include "kernels/cuda/runtime/device_queue.h"
#include "kernels/ops/op_table.h"
#include "kernels/ops/params.h"
#include "kernels/reference/reference_ops.h"
#include "tests/gpu/support/gpu_test.h"
#include "tests/kernels/support/backends.h"

namespace baton::kernels::cuda {
namespace {

struct Shape {
  int64_t rows = 0;
  int64_t in = 0;
  int64_t out = 0;
  int64_t padding = 0;  // elements between rows of x and of out
  bool bias = false;
  bool accumulate = false;
  bool wide = false;

  int64_t x_stride() const { return in + padding; }
  int64_t out_stride() const { return out + padding; }
  size_t out_elements() const { return static_cast<size_t>(rows * out_stride()); }
};

std::vector<float> RandomBf16(int64_t count, float scale = 1.0f) {
  return RoundedTo(RandomFloats(static_cast<size_t>(count), scale), DType::kBF16);
}

// Inputs of one product, and what the reference makes of them.
class Problem {
 public:
  explicit Problem(const Shape& shape)
      : shape_(shape),
        x_(RandomBf16(shape.rows * shape.x_stride())),
        // Sums are about as large as the values of x.
        weight_(RandomBf16(shape.out * shape.in, 1.0f / std::sqrt(static_cast<float>(shape.in)))),
        bias_(RandomBf16(shape.out)),
        before_(RandomBf16(static_cast<int64_t>(shape.out_elements()))) {}

  // As on the host; fill in pointers to run elsewhere.
  MatmulParams Params() const {
    return {.x = x_.data(),
            .x_stride = shape_.x_stride(),
            .weight = {.out_features = shape_.out, .in_features = shape_.in},
            .bias = shape_.bias ? bias_.data() : nullptr,
            .accumulate = shape_.accumulate,
            .rows = shape_.rows,
            .out_stride = shape_.out_stride(),
            .wide = shape_.wide};
  }

  std::vector<float> Want() const {
    const TestContext host(ReferenceOps(), 1);
    const PackedWeight packed(ReferenceOps(), *host, weight_, shape_.out, shape_.in, DType::kBF16);
    std::vector<float> out = before_;
    MatmulParams params = Params();
    params.weight = packed.matrix;
    params.out = out.data();
    EXPECT_TRUE(ReferenceOps().matmul(*host, params).ok());
    return out;
  }

  std::vector<float> Got(const OpTable& ops, const ExecContext& context) const {
    if (shape_.wide) {
      const auto out = DeviceArray<float>::Poisoned(shape_.out_elements());
      Run(ops, context, out.data());
      return out.Get();
    }
    const DeviceArray<uint16_t> out = shape_.accumulate
                                          ? Activations(before_)
                                          : DeviceArray<uint16_t>::Poisoned(shape_.out_elements());
    Run(ops, context, out.data());
    return Widened(out);
  }

  // Half a unit in the last place of bf16 of all sums that may be rounded to it on the way to
  // `want`, element i of the result: itself, and without what is added last, in whichever order.
  double Rounding(size_t i, double want) const {
    if (shape_.wide) {
      return 0.0;
    }
    const double before = shape_.accumulate ? before_[i] : 0.0;
    const double bias = shape_.bias ? bias_[i % static_cast<size_t>(shape_.out_stride())] : 0.0;
    double magnitude = std::fabs(want);
    if (shape_.accumulate) {
      magnitude += std::fabs(want - before);
    }
    if (shape_.bias) {
      magnitude += std::fabs(want - bias);
    }
    if (shape_.accumulate && shape_.bias) {
      magnitude += std::fabs(want - before - bias);
    }
    return 0x1p-8 * magnitude;
  }

  // What the result holds beforehand of a call that accumulates.
  const std::vector<float>& before() const { return before_; }

 private:
  void Run(const OpTable& ops, const ExecContext& context, void* out) const {
    const DeviceArray<uint16_t> x = Activations(x_);
    const DeviceArray<uint16_t> source = Activations(weight_);
    const DeviceArray<float> bias(bias_);
    const auto packed = DeviceArray<uint16_t>::Poisoned(
        ops.packed_matrix_bytes(shape_.out, shape_.in, DType::kBF16) / sizeof(uint16_t));
    const absl::Status status =
        ops.pack_matrix(context,
                        {.source = reinterpret_cast<const std::byte*>(source.data()),
                         .out_features = shape_.out,
                         .in_features = shape_.in,
                         .target = reinterpret_cast<std::byte*>(packed.data())});
    EXPECT_TRUE(status.ok()) << status;
    MatmulParams params = Params();
    params.x = x.data();
    params.weight.data = reinterpret_cast<const std::byte*>(packed.data());
    params.bias = shape_.bias ? bias.data() : nullptr;
    params.out = out;
    const absl::Status run = ops.matmul(context, params);
    EXPECT_TRUE(run.ok()) << run;
    EXPECT_TRUE(context.queue->Wait().ok());
  }

  Shape shape_;
  std::vector<float> x_;
  std::vector<float> weight_;
  std::vector<float> bias_;
  std::vector<float> before_;
};

class MatmulGpuTest : public GpuTest {
 protected:
  void Check(const Shape& shape) const {
    SCOPED_TRACE(testing::Message()
                 << shape.rows << " rows, " << shape.in << " to " << shape.out << " features + "
                 << shape.padding << (shape.bias ? ", bias" : "")
                 << (shape.accumulate ? ", accumulate" : "") << (shape.wide ? ", wide" : ""));
    const Problem problem(shape);
    const std::vector<float> want = problem.Want();
    const std::vector<float> got = problem.Got(ops(), context());
    for (size_t i = 0; i < got.size(); ++i) {
      if (static_cast<int64_t>(i) % shape.out_stride() < shape.out) {
        ASSERT_NEAR(got[i], want[i], problem.Rounding(i, want[i]) + 1e-4)
            << "element " << i << "; " << SeedMessage();
      } else if (shape.accumulate) {
        ASSERT_EQ(got[i], problem.before()[i]) << "between rows, element " << i;
      } else {
        ASSERT_TRUE(std::isnan(got[i])) << "between rows, element " << i;
      }
    }
  }
  // out = x weight^T, `weight` of rows of `in`; none of the three has gaps between its rows.
  void Multiply(const uint16_t* x,
                int64_t rows,
                const DeviceArray<uint16_t>& weight,
                int64_t in,
                const DeviceArray<uint16_t>& out) const {
    const int64_t features = static_cast<int64_t>(weight.size()) / in;
    const absl::Status status =
        ops().matmul(context(),
                     {.x = x,
                      .x_stride = in,
                      .weight = {.data = reinterpret_cast<const std::byte*>(weight.data()),
                                 .out_features = features,
                                 .in_features = in},
                      .rows = rows,
                      .out = out.data(),
                      .out_stride = features});
    EXPECT_TRUE(status.ok()) << status;
  }
  // Every form of a product.
  void CheckAll(Shape shape) const {
    Check(shape);
    shape.bias = true;
    Check(shape);
    shape.wide = true;
    Check(shape);
    shape.bias = false;
    Check(shape);
    shape.wide = false;
    shape.accumulate = true;
    Check(shape);
    shape.bias = true;
    Check(shape);
  }
};

TEST_F(MatmulGpuTest, MultipliesAnyNumberOfRows) {
  for (const int64_t rows : {1, 2, 3, 8, 9, 17, 64, 300}) {
    CheckAll({.rows = rows, .in = 128, .out = 256});
  }
}

TEST_F(MatmulGpuTest, MultipliesMatricesOfAnySize) {
  CheckAll({.rows = 5, .in = 64, .out = 48});
  CheckAll({.rows = 64, .in = 192, .out = 1000});
  Check({.rows = 1, .in = 4096, .out = 1000, .bias = true});
  Check({.rows = 17, .in = 4096, .out = 512, .accumulate = true});
  Check({.rows = 300, .in = 4096, .out = 48});
  Check({.rows = 300, .in = 512, .out = 1000, .wide = true});
}

TEST_F(MatmulGpuTest, LeavesWhatIsBetweenRows) {
  for (const int64_t padding : {8, 64, 3}) {
    CheckAll({.rows = 17, .in = 256, .out = 136, .padding = padding});
  }
}

TEST_F(MatmulGpuTest, SizesNeedNotBeMultiplesOfEight) {
  CheckAll({.rows = 7, .in = 64, .out = 51});
  CheckAll({.rows = 7, .in = 37, .out = 64});
  CheckAll({.rows = 1, .in = 37, .out = 51, .padding = 2});
}

// 256 + (1 + 2^-8) is nearer to 258 than to 256, bf16's neighbours; with the product rounded to 1
// first it would be a tie, and 256.
TEST_F(MatmulGpuTest, ABiasIsAddedBeforeTheSumIsRounded) {
  constexpr int64_t kIn = 264;
  constexpr int64_t kOut = 64;
  std::vector<float> ones(kIn);
  std::fill_n(ones.begin(), 257, 1.0f);
  const DeviceArray<uint16_t> x = Activations(ones);
  const DeviceArray<uint16_t> weight = Activations(std::vector<float>(kIn * kOut, 0x1p-8f));
  const DeviceArray<float> bias(std::vector<float>(kOut, 256.0f));
  const auto out = DeviceArray<uint16_t>::Poisoned(kOut);
  ASSERT_TRUE(ops()
                  .matmul(context(),
                          {.x = x.data(),
                           .x_stride = kIn,
                           .weight = {.data = reinterpret_cast<const std::byte*>(weight.data()),
                                      .out_features = kOut,
                                      .in_features = kIn},
                           .bias = bias.data(),
                           .rows = 1,
                           .out = out.data(),
                           .out_stride = kOut})
                  .ok());
  Wait();
  EXPECT_EQ(Widened(out), std::vector<float>(kOut, 258.0f));
}

// Depths that end inside what the warps of a block take at a time, and features inside a block.
TEST_F(MatmulGpuTest, FewRowsOfAnyDepth) {
  for (const int64_t in : {8, 40, 264, 1000, 1032, 2056, 14336}) {
    CheckAll({.rows = 5, .in = in, .out = 19});
  }
}

TEST_F(MatmulGpuTest, FewRowsDoNotDependOnEachOther) {
  constexpr int64_t kIn = 1032;
  constexpr int64_t kOut = 48;
  const DeviceArray<uint16_t> x = Activations(RandomBf16(8 * kIn));
  const DeviceArray<uint16_t> weight = Activations(RandomBf16(kOut * kIn));
  const auto multiply = [&](int64_t first, int64_t rows) {
    const auto out = DeviceArray<uint16_t>::Poisoned(static_cast<size_t>(rows * kOut));
    Multiply(x.data() + first * kIn, rows, weight, kIn, out);
    Wait();
    return out.Get();
  };
  const std::vector<uint16_t> together = multiply(0, 8);
  for (int64_t row = 0; row < 8; ++row) {
    const std::vector<uint16_t> alone = multiply(row, 1);
    EXPECT_TRUE(std::equal(alone.begin(), alone.end(), together.begin() + row * kOut))
        << "row " << row << "; " << SeedMessage();
  }
}

// Fewer blocks have more tiles each then, and begin while those in front end.
TEST_F(MatmulGpuTest, FewRowsInARowAreTheSameWhileTheDeviceIsShared) {
  constexpr int64_t kRows = 3;
  constexpr int64_t kWidth = 4096 + 8;
  const std::vector<float> values = RandomBf16(kRows * kWidth);
  const DeviceArray<uint16_t> weight = Activations(RandomBf16(kWidth * kWidth, 1.0f / 64.0f));
  const auto multiply_often = [&](bool shared) {
    queue().set_shared(shared);
    DeviceArray<uint16_t> x = Activations(values);
    DeviceArray<uint16_t> out = DeviceArray<uint16_t>::Poisoned(kRows * kWidth);
    for (int turn = 0; turn < 6; ++turn) {
      Multiply(x.data(), kRows, weight, kWidth, out);
      std::swap(x, out);
    }
    Wait();
    queue().set_shared(false);
    return x.Get();
  };
  const std::vector<uint16_t> alone = multiply_often(false);
  for (int turn = 0; turn < 3; ++turn) {
    EXPECT_EQ(multiply_often(true), alone) << SeedMessage();
  }
  EXPECT_EQ(multiply_often(false), alone) << SeedMessage();
}

TEST_F(MatmulGpuTest, ResultsRepeatBitByBit) {
  for (const int64_t rows : {1, 64}) {
    const Problem problem({.rows = rows, .in = 4096, .out = 128});
    const std::vector<float> first = problem.Got(ops(), context());
    EXPECT_EQ(problem.Got(ops(), context()), first);
  }
}

// Every number of rows is a shape of its own.
TEST_F(MatmulGpuTest, TakesMoreShapesThanAreRemembered) {
  constexpr int64_t kWidth = 16;
  constexpr auto kRows = static_cast<int64_t>(MatmulPlans::kMostPlans) + 10;
  const std::vector<float> ones(kRows * kWidth, 1.0f);
  const DeviceArray<uint16_t> x = Activations(ones);
  const DeviceArray<uint16_t> weight = Activations(std::vector<float>(kWidth * kWidth, 1.0f));
  const auto out = DeviceArray<uint16_t>::Poisoned(ones.size());
  MatmulParams params = {.x = x.data(),
                         .x_stride = kWidth,
                         .weight = {.data = reinterpret_cast<const std::byte*>(weight.data()),
                                    .out_features = kWidth,
                                    .in_features = kWidth},
                         .out = out.data(),
                         .out_stride = kWidth};
  for (params.rows = 1; params.rows <= kRows; ++params.rows) {
    const absl::Status status = ops().matmul(context(), params);
    ASSERT_TRUE(status.ok()) << status;
  }
  Wait();
  EXPECT_EQ(Widened(out), std::vector<float>(ones.size(), float{kWidth}));
}

// Each product of x^T weight, added to what the first call has left. Small whole numbers: sums are
// exact in any order.
TEST_F(MatmulGpuTest, SeveralProductsByFeature) {
  constexpr int64_t kProducts = 3;
  constexpr int64_t kIn = 256;
  constexpr int64_t kRows = 64;
  constexpr int64_t kOut = 128;
  const auto whole = [](std::vector<float> values) {
    for (float& x : values) x = std::round(4.0f * x);
    return values;
  };
  const std::vector<float> x = whole(RandomBf16(kProducts * kIn * kRows));
  const std::vector<float> weight = whole(RandomBf16(kProducts * kIn * kOut));
  const DeviceArray<uint16_t> device_x = Activations(x);
  const DeviceArray<uint16_t> device_weight = Activations(weight);
  const auto out = DeviceArray<float>::Poisoned(kProducts * kRows * kOut);
  const auto plans = queue().matmul_plans();
  ASSERT_TRUE(plans.ok()) << plans.status();
  MatmulCall call = {.x = device_x.data(),
                     .x_stride = kRows,
                     .weight = device_weight.data(),
                     .out = out.data(),
                     .out_stride = kOut,
                     .rows = kRows,
                     .out_features = kOut,
                     .in_features = kIn,
                     .wide = true,
                     .by_feature = true,
                     .products = kProducts};
  for (const bool accumulate : {false, true}) {
    call.accumulate = accumulate;
    const absl::Status status = (*plans)->Run(call, {}, queue().stream());
    ASSERT_TRUE(status.ok()) << status;
  }
  Wait();
  std::vector<float> want(kProducts * kRows * kOut);
  for (int64_t at = 0; at < static_cast<int64_t>(want.size()); ++at) {
    const int64_t product = at / (kRows * kOut);
    const int64_t row = at / kOut % kRows;
    const int64_t feature = at % kOut;
    for (int64_t i = product * kIn; i < (product + 1) * kIn; ++i) {
      want[static_cast<size_t>(at)] += 2.0f * x[static_cast<size_t>(i * kRows + row)] *
                                       weight[static_cast<size_t>(i * kOut + feature)];
    }
  }
  EXPECT_EQ(out.Get(), want) << SeedMessage();
}

TEST_F(MatmulGpuTest, NoRowsAndNoFeaturesDoNothing) {
  EXPECT_TRUE(ops().matmul(context(), {.weight = {.out_features = 8, .in_features = 8}}).ok());
  EXPECT_TRUE(ops().matmul(context(), {.weight = {.in_features = 8}, .rows = 3}).ok());
  EXPECT_TRUE(ops().pack_matrix(context(), {.in_features = 8}).ok());
  Wait();
}

class RefusedMatmulGpuTest : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    memory_ = std::make_unique<DeviceArray<uint16_t>>(std::vector<uint16_t>(64 * 64));
  }

  MatmulParams Params() const {
    return {.x = memory_->data(),
            .x_stride = 64,
            .weight = {.data = reinterpret_cast<const std::byte*>(memory_->data()),
                       .out_features = 32,
                       .in_features = 64},
            .rows = 2,
            .out = memory_->data(),
            .out_stride = 32};
  }
  void ExpectRefused(const MatmulParams& params,
                     absl::StatusCode code,
                     const std::string& part) const {
    const absl::Status status = ops().matmul(context(), params);
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_NE(status.message().find(part), absl::string_view::npos) << status;
  }

 private:
  std::unique_ptr<DeviceArray<uint16_t>> memory_;
};

TEST_F(RefusedMatmulGpuTest, NamesAStrideShorterThanItsRow) {
  MatmulParams params = Params();
  params.x_stride = 63;
  ExpectRefused(params, absl::StatusCode::kInvalidArgument, "x_stride");
  params = Params();
  params.out_stride = 31;
  ExpectRefused(params, absl::StatusCode::kInvalidArgument, "out_stride");
}

TEST_F(RefusedMatmulGpuTest, NamesWhatIsMissing) {
  MatmulParams params = Params();
  params.weight.data = nullptr;
  ExpectRefused(params, absl::StatusCode::kInvalidArgument, "weight.data");
  params = Params();
  params.weight.in_features = 0;
  ExpectRefused(params, absl::StatusCode::kInvalidArgument, "weight.in_features");
}

TEST_F(RefusedMatmulGpuTest, AWideResultCannotBeAccumulatedTo) {
  MatmulParams params = Params();
  params.accumulate = true;
  params.wide = true;
  ExpectRefused(params, absl::StatusCode::kInvalidArgument, "wide");
}

TEST_F(RefusedMatmulGpuTest, WeightsOfFp32AreNotThere) {
  MatmulParams params = Params();
  params.weight.dtype = DType::kF32;
  ExpectRefused(params, absl::StatusCode::kUnimplemented, "weight.dtype is f32");
  const absl::Status status = ops().pack_matrix(context(),
                                                {.source = params.weight.data,
                                                 .out_features = 8,
                                                 .in_features = 8,
                                                 .dtype = DType::kF32,
                                                 .target = static_cast<std::byte*>(params.out)});
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << status;
}

TEST_F(RefusedMatmulGpuTest, SaysHowMuchWorkspaceItNeeds) {
  const absl::StatusOr<std::unique_ptr<DeviceQueue>> small = DeviceQueue::Create(1 << 20);
  ASSERT_TRUE(small.ok()) << small.status();
  MatmulParams params = Params();
  params.rows = 16;  // more than the kernel for few rows takes
  const absl::Status status = ops().matmul({.queue = small->get()}, params);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_NE(status.message().find("33554432"), absl::string_view::npos) << status;
  EXPECT_GE(ops().workspace_bytes(1, 64, 64), size_t{33554432});
}

}  // namespace
}  // namespace baton::kernels::cuda
