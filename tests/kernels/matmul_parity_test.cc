// Matmul of every back end against sums in double.
#include <cmath>
#include <tuple>

#include "tests/kernels/support/backends.h"

namespace baton::kernels {
namespace {

using Case = std::tuple<std::string, DType>;

class MatmulParityTest : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    ops_ = FindBackend(std::get<0>(GetParam()));
    if (ops_ == nullptr) {
      GTEST_SKIP() << "this machine has no " << std::get<0>(GetParam());
    }
  }
  DType dtype() const { return std::get<1>(GetParam()); }

  // Runs one shape with padded strides and compares every element; the padding must stay as it was.
  void Check(int64_t rows, int64_t in, int64_t out, bool bias, bool accumulate, int threads) {
    SCOPED_TRACE(testing::Message() << rows << " x " << in << " x " << out << " bias " << bias
                                    << " accumulate " << accumulate);
    const TestContext context(*ops_, threads);
    const std::vector<float> weight = RandomFloats(static_cast<size_t>(out * in));
    const PackedWeight packed(*ops_, *context, weight, out, in, dtype());
    const std::vector<float> rounded = RoundedTo(weight, dtype());
    const int64_t x_stride = in + 3;
    const int64_t out_stride = out + 5;
    const std::vector<float> x = RandomFloats(static_cast<size_t>(rows * x_stride));
    const std::vector<float> bias_values = RandomFloats(static_cast<size_t>(out));
    std::vector<float> got = RandomFloats(static_cast<size_t>(rows * out_stride));
    std::vector<float> want = got;
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < out; ++c) {
        float& element = want[static_cast<size_t>(r * out_stride + c)];
        double sum = accumulate ? double{element} : 0.0;
        sum += bias ? double{bias_values[static_cast<size_t>(c)]} : 0.0;
        for (int64_t k = 0; k < in; ++k) {
          sum += double{x[static_cast<size_t>(r * x_stride + k)]} *
                 double{rounded[static_cast<size_t>(c * in + k)]};
        }
        element = static_cast<float>(sum);
      }
    }
    const absl::Status status = ops_->matmul(*context,
                                             {.x = x.data(),
                                              .x_stride = x_stride,
                                              .weight = packed.matrix,
                                              .bias = bias ? bias_values.data() : nullptr,
                                              .accumulate = accumulate,
                                              .rows = rows,
                                              .out = got.data(),
                                              .out_stride = out_stride});
    ASSERT_TRUE(status.ok()) << status;
    ExpectNear(got, want, 2e-6);
  }

  const OpTable* ops_ = nullptr;
};

TEST_P(MatmulParityTest, AllTileHeights) {
  for (int64_t rows = 1; rows <= 26; ++rows) {
    Check(rows, 72, 96, false, false, 1);
  }
}

TEST_P(MatmulParityTest, ColumnTails) {
  for (const int64_t out : {1, 3, 8, 15, 17, 31, 33, 63, 129}) {
    Check(3, 40, out, true, true, 1);
    Check(45, 40, out, true, false, 2);
  }
}

TEST_P(MatmulParityTest, DepthBlocksAndTails) {
  for (const int64_t in : {1, 7, 255, 256, 257, 512, 1000}) {
    Check(2, in, 70, true, true, 1);
    Check(40, in, 70, false, true, 2);
  }
}

TEST_P(MatmulParityTest, ManyRowsOnSeveralThreads) {
  Check(500, 300, 200, true, false, 2);
  Check(8, 600, 700, false, false, 3);
}

TEST_P(MatmulParityTest, NoInputFeaturesGiveTheBias) { Check(2, 0, 20, true, false, 1); }

TEST_P(MatmulParityTest, NoRowsAndNoColumnsDoNothing) {
  Check(0, 16, 16, false, false, 1);
  Check(4, 16, 0, false, false, 1);
}

INSTANTIATE_TEST_SUITE_P(Backends,
                         MatmulParityTest,
                         testing::Combine(testing::ValuesIn(kBackends),
                                          testing::Values(DType::kF32, DType::kBF16)),
                         [](const testing::TestParamInfo<Case>& test) {
                           return std::get<0>(test.param) + "_" +
                                  std::string(DTypeName(std::get<1>(test.param)));
                         });

}  // namespace
}  // namespace baton::kernels
