// rms_norm, rope, rope_angles and silu_mul of every back end against their definitions in double.
#include <cmath>
#include <limits>

#include "tests/kernels/support/backends.h"

namespace baton::kernels {
namespace {

class RowWiseParityTest : public BackendTest {};

void CheckRmsNorm(const OpTable& ops, int64_t rows, int64_t groups, int64_t dim) {
  SCOPED_TRACE(testing::Message() << rows << " x " << groups << " x " << dim);
  const TestContext context(ops, 2);
  const int64_t stride = groups * dim + 7;
  const std::vector<float> x = RandomFloats(static_cast<size_t>(rows * stride), 3.0f);
  const std::vector<float> weight = RandomFloats(static_cast<size_t>(dim));
  std::vector<float> got = x;
  std::vector<float> want = x;
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t g = 0; g < groups; ++g) {
      const float* in = x.data() + r * stride + g * dim;
      double sum = 0.0;
      for (int64_t i = 0; i < dim; ++i) {
        sum += double{in[i]} * double{in[i]};
      }
      const double inverse = 1.0 / std::sqrt(sum / static_cast<double>(dim) + 1e-6);
      for (int64_t i = 0; i < dim; ++i) {
        want[static_cast<size_t>(r * stride + g * dim + i)] =
            static_cast<float>(in[i] * inverse * weight[static_cast<size_t>(i)]);
      }
    }
  }
  const absl::Status status = ops.rms_norm(*context,
                                           {.x = got.data(),
                                            .x_stride = stride,
                                            .weight = weight.data(),
                                            .epsilon = 1e-6f,
                                            .rows = rows,
                                            .groups = groups,
                                            .dim = dim,
                                            .out = got.data(),
                                            .out_stride = stride});
  ASSERT_TRUE(status.ok()) << status;
  ExpectNear(got, want, 1e-6);
}

TEST_P(RowWiseParityTest, RmsNormInPlaceOverGroups) {
  for (const int64_t dim : {1, 5, 16, 64, 100, 256, 1027}) {
    CheckRmsNorm(ops(), 3, 1, dim);
    CheckRmsNorm(ops(), 2, 4, dim);
  }
  CheckRmsNorm(ops(), 300, 1, 256);
  CheckRmsNorm(ops(), 0, 1, 8);
}

TEST_P(RowWiseParityTest, RopeRotatesHalves) {
  for (const int64_t half : {1, 4, 8, 20, 32, 64}) {
    const int64_t rows = 70;
    const int64_t heads = 3;
    const int64_t stride = heads * 2 * half + 2;
    const TestContext context(ops(), 2);
    std::vector<float> got = RandomFloats(static_cast<size_t>(rows * stride));
    std::vector<float> want = got;
    const std::vector<float> cosines = RandomFloats(static_cast<size_t>(rows * half));
    const std::vector<float> sines = RandomFloats(static_cast<size_t>(rows * half));
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t h = 0; h < heads; ++h) {
        for (int64_t i = 0; i < half; ++i) {
          float* x = want.data() + r * stride + h * 2 * half;
          const double c = cosines[static_cast<size_t>(r * half + i)];
          const double s = sines[static_cast<size_t>(r * half + i)];
          const double a = x[i];
          const double b = x[i + half];
          x[i] = static_cast<float>(a * c - b * s);
          x[i + half] = static_cast<float>(b * c + a * s);
        }
      }
    }
    const absl::Status status = ops().rope(*context,
                                           {.x = got.data(),
                                            .x_stride = stride,
                                            .cosines = cosines.data(),
                                            .sines = sines.data(),
                                            .rows = rows,
                                            .heads = heads,
                                            .half_dim = half});
    ASSERT_TRUE(status.ok()) << status;
    ExpectNear(got, want, 1e-6);
  }
}

TEST_P(RowWiseParityTest, RopeAnglesAreAccurateUpToAMillion) {
  const std::vector<int32_t> positions = {0, 1, 2, 1000, 8191, 131071, 999'983, 1'000'000};
  std::vector<float> frequencies;
  for (int i = 0; i < 32; ++i) {
    frequencies.push_back(static_cast<float>(std::pow(500000.0, -i / 32.0)));
  }
  const TestContext context(ops(), 1);
  std::vector<float> cosines(positions.size() * frequencies.size());
  std::vector<float> sines(cosines.size());
  ASSERT_TRUE(ops()
                  .rope_angles(*context,
                               {.positions = positions.data(),
                                .inverse_frequencies = frequencies.data(),
                                .rows = static_cast<int64_t>(positions.size()),
                                .half_dim = static_cast<int64_t>(frequencies.size()),
                                .cosines = cosines.data(),
                                .sines = sines.data()})
                  .ok());
  for (size_t r = 0; r < positions.size(); ++r) {
    for (size_t i = 0; i < frequencies.size(); ++i) {
      const float angle = static_cast<float>(positions[r]) * frequencies[i];
      EXPECT_NEAR(cosines[r * 32 + i], std::cos(double{angle}), 1e-7);
      EXPECT_NEAR(sines[r * 32 + i], std::sin(double{angle}), 1e-7);
    }
  }
}

TEST_P(RowWiseParityTest, SiluMulOverTheWholeRange) {
  std::vector<float> gates = {0.0f,
                              -0.0f,
                              1e-30f,
                              -1e-30f,
                              20.0f,
                              -20.0f,
                              80.0f,
                              -80.0f,
                              88.0f,
                              -88.0f,
                              1e4f,
                              -1e4f,
                              3e38f,
                              -3e38f};
  for (int i = -2000; i <= 2000; ++i) {
    gates.push_back(static_cast<float>(i) * 0.01f);
  }
  const auto dim = static_cast<int64_t>(gates.size());
  std::vector<float> gate_up = gates;
  const std::vector<float> up = RandomFloats(gates.size());
  gate_up.insert(gate_up.end(), up.begin(), up.end());
  const TestContext context(ops(), 2);
  std::vector<float> out(gates.size());
  ASSERT_TRUE(ops()
                  .silu_mul(*context,
                            {.gate_up = gate_up.data(),
                             .gate_up_stride = 2 * dim,
                             .rows = 1,
                             .dim = dim,
                             .out = out.data(),
                             .out_stride = dim})
                  .ok());
  for (size_t i = 0; i < gates.size(); ++i) {
    const double g = gates[i];
    const double silu = g / (1.0 + std::exp(-g));
    const double want = silu * double{up[i]};
    if (std::fabs(want) < double{std::numeric_limits<float>::max()}) {
      EXPECT_NEAR(out[i], want, 1e-6 * std::fabs(want) + 1e-30) << "gate " << g;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Backends,
                         RowWiseParityTest,
                         testing::ValuesIn(kBackends),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace baton::kernels
