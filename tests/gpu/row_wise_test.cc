// rms_norm, rope, rope_angles and silu_mul on the device against the reference. Inputs are bf16
// values, results may differ by a rounding to bf16.
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "kernels/core/dtype.h"
#include "kernels/core/exec_context.h"
#include "kernels/cuda/runtime/device_queue.h"
#include "kernels/ops/op_table.h"
#include "kernels/ops/params.h"
#include "kernels/reference/reference_ops.h"
#include "tests/gpu/support/gpu_test.h"
#include "tests/kernels/support/backends.h"

namespace baton::kernels::cuda {
namespace {

class RmsNormGpuTest : public GpuTest {};
class RopeGpuTest : public GpuTest {};
class RopeAnglesGpuTest : public GpuTest {};
class SiluMulGpuTest : public GpuTest {};

// Rows of a width in an array with `padding` elements after each.
struct RowShape {
  int64_t rows = 0;
  int64_t width = 0;
  int64_t padding = 0;

  int64_t stride() const { return width + padding; }
  size_t elements() const { return static_cast<size_t>(rows * stride()); }
};

std::vector<float> RandomBf16(size_t count, float scale = 1.0f) {
  return RoundedTo(RandomFloats(count, scale), DType::kBF16);
}

// Every element of the rows within a unit in bf16's last place of `want`; what lies between rows is
// as `between` has it, or NaN without that.
void ExpectRows(const std::vector<float>& got,
                const std::vector<float>& want,
                const RowShape& shape,
                const std::vector<float>& between = {}) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    const int64_t column = static_cast<int64_t>(i) % shape.stride();
    if (column < shape.width) {
      ASSERT_NEAR(got[i], want[i], 0x1p-8 * std::fabs(double{want[i]}) + 1e-6)
          << "element " << i << "; " << SeedMessage();
    } else if (between.empty()) {
      ASSERT_TRUE(std::isnan(got[i])) << "between rows, element " << i;
    } else {
      ASSERT_EQ(got[i], between[i]) << "between rows, element " << i;
    }
  }
}

// Heads of `dim` elements, `groups` to a row.
struct NormShape {
  int64_t rows = 0;
  int64_t groups = 0;
  int64_t dim = 0;
  int64_t padding = 0;
  bool in_place = false;
};

void CheckRmsNorm(const OpTable& ops, const ExecContext& context, const NormShape& shape) {
  SCOPED_TRACE(testing::Message() << shape.rows << " x " << shape.groups << " x " << shape.dim
                                  << " + " << shape.padding << (shape.in_place ? " in place" : ""));
  const RowShape rows = {
      .rows = shape.rows, .width = shape.groups * shape.dim, .padding = shape.padding};
  const std::vector<float> x = RandomBf16(rows.elements(), 3.0f);
  const std::vector<float> weight = RandomFloats(static_cast<size_t>(shape.dim));
  std::vector<float> want(x.size());
  RmsNormParams params = {.x = x.data(),
                          .x_stride = rows.stride(),
                          .weight = weight.data(),
                          .epsilon = 1e-6f,
                          .rows = shape.rows,
                          .groups = shape.groups,
                          .dim = shape.dim,
                          .out = want.data(),
                          .out_stride = rows.stride()};
  const TestContext host(ReferenceOps(), 1);
  ASSERT_TRUE(ReferenceOps().rms_norm(*host, params).ok());

  const DeviceArray<uint16_t> device_x = Activations(x);
  const DeviceArray<float> device_weight(weight);
  const auto poisoned = DeviceArray<uint16_t>::Poisoned(x.size());
  const DeviceArray<uint16_t>& out = shape.in_place ? device_x : poisoned;
  params.x = device_x.data();
  params.weight = device_weight.data();
  params.out = out.data();
  const absl::Status status = ops.rms_norm(context, params);
  ASSERT_TRUE(status.ok()) << status;
  ASSERT_TRUE(context.queue->Wait().ok());
  ExpectRows(Widened(out), want, rows, shape.in_place ? x : std::vector<float>{});
}

TEST_F(RmsNormGpuTest, NormalisesRowsOfEveryWidth) {
  for (const int64_t dim :
       {1, 5, 8, 100, 256, 264, 512, 1027, 2048, 2056, 3584, 4096, 4104, 8192, 8200}) {
    CheckRmsNorm(ops(), context(), {.rows = 3, .groups = 1, .dim = dim});
    CheckRmsNorm(ops(), context(), {.rows = 2, .groups = 1, .dim = dim, .padding = 8});
    CheckRmsNorm(ops(), context(), {.rows = 2, .groups = 1, .dim = dim, .padding = 3});
  }
}

TEST_F(RmsNormGpuTest, NormalisesEveryHead) {
  for (const int64_t dim : {8, 16, 24, 64, 80, 128, 256, 320, 37}) {
    for (const int64_t groups : {1, 2, 7, 8, 40}) {
      CheckRmsNorm(ops(), context(), {.rows = 3, .groups = groups, .dim = dim, .padding = 16});
    }
  }
}

TEST_F(RmsNormGpuTest, WorksInPlace) {
  for (const int64_t dim : {37, 64, 128, 512, 1024, 4096, 16384}) {
    CheckRmsNorm(ops(), context(), {.rows = 5, .groups = 2, .dim = dim, .in_place = true});
    CheckRmsNorm(
        ops(), context(), {.rows = 5, .groups = 2, .dim = dim, .padding = 1, .in_place = true});
  }
}

TEST_F(RmsNormGpuTest, RowsDoNotDependOnTheirNumber) {
  constexpr int64_t kDim = 4096;
  constexpr int64_t kRows = 70;
  const DeviceArray<uint16_t> x = Activations(RandomFloats(kRows * kDim));
  const DeviceArray<float> weight(RandomFloats(kDim));
  const auto all = DeviceArray<uint16_t>::Poisoned(kRows * kDim);
  const auto one = DeviceArray<uint16_t>::Poisoned(kRows * kDim);
  RmsNormParams params = {.x = x.data(),
                          .x_stride = kDim,
                          .weight = weight.data(),
                          .rows = kRows,
                          .dim = kDim,
                          .out = all.data(),
                          .out_stride = kDim};
  ASSERT_TRUE(ops().rms_norm(context(), params).ok());
  params.rows = 1;
  for (int64_t row = 0; row < kRows; ++row) {
    params.x = x.data() + row * kDim;
    params.out = one.data() + row * kDim;
    ASSERT_TRUE(ops().rms_norm(context(), params).ok());
  }
  Wait();
  EXPECT_EQ(all.Get(), one.Get());
}

TEST_F(RmsNormGpuTest, NoRowsNeedNoMemory) {
  EXPECT_TRUE(ops().rms_norm(context(), {.rows = 0, .dim = 8}).ok());
  Wait();
}

TEST_F(RmsNormGpuTest, NamesAStrideShorterThanItsRow) {
  const auto x = DeviceArray<uint16_t>::Poisoned(64);
  const DeviceArray<float> weight(RandomFloats(32));
  const absl::Status status = ops().rms_norm(context(),
                                             {.x = x.data(),
                                              .x_stride = 31,
                                              .weight = weight.data(),
                                              .rows = 2,
                                              .dim = 32,
                                              .out = x.data(),
                                              .out_stride = 32});
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("x_stride"), std::string::npos) << status;
}

void CheckRope(const OpTable& ops,
               const ExecContext& context,
               const RowShape& shape,
               int64_t half) {
  SCOPED_TRACE(testing::Message() << shape.rows << " x " << shape.width << " + " << shape.padding
                                  << ", half a head " << half);
  const std::vector<float> x = RandomBf16(shape.elements());
  const auto angles = static_cast<size_t>(shape.rows * half);
  const std::vector<float> cosines = RandomFloats(angles);
  const std::vector<float> sines = RandomFloats(angles);
  std::vector<float> want = x;
  RopeParams params = {.x = want.data(),
                       .x_stride = shape.stride(),
                       .cosines = cosines.data(),
                       .sines = sines.data(),
                       .rows = shape.rows,
                       .heads = shape.width / (2 * half),
                       .half_dim = half};
  const TestContext host(ReferenceOps(), 1);
  ASSERT_TRUE(ReferenceOps().rope(*host, params).ok());

  const DeviceArray<uint16_t> device_x = Activations(x);
  const DeviceArray<float> device_cosines(cosines);
  const DeviceArray<float> device_sines(sines);
  params.x = device_x.data();
  params.cosines = device_cosines.data();
  params.sines = device_sines.data();
  const absl::Status status = ops.rope(context, params);
  ASSERT_TRUE(status.ok()) << status;
  ASSERT_TRUE(context.queue->Wait().ok());
  ExpectRows(Widened(device_x), want, shape, x);
}

TEST_F(RopeGpuTest, RotatesHalvesOfEveryHead) {
  for (const int64_t half : {1, 4, 8, 20, 32, 40, 64, 128}) {
    for (const int64_t heads : {1, 3, 8, 32}) {
      const RowShape shape = {.rows = 3, .width = heads * 2 * half};
      CheckRope(ops(), context(), shape, half);
    }
  }
}

TEST_F(RopeGpuTest, LeavesWhatIsBetweenRows) {
  for (const int64_t padding : {8, 5}) {
    const RowShape shape = {.rows = 70, .width = 2 * 64, .padding = padding};
    CheckRope(ops(), context(), shape, 32);
  }
}

TEST_F(RopeAnglesGpuTest, AnglesAreAccurateUpToAMillion) {
  const std::vector<int32_t> positions = {
      0, 1, 2, 1000, 8191, 105'615, 131'071, 999'983, 1'000'000};
  for (const int64_t half : {1, 32, 37, 64, 300}) {
    std::vector<float> frequencies;
    frequencies.reserve(static_cast<size_t>(half));
    for (int64_t i = 0; i < half; ++i) {
      frequencies.push_back(static_cast<float>(
          std::pow(500000.0, -static_cast<double>(i) / static_cast<double>(half))));
    }
    const DeviceArray<int32_t> device_positions(positions);
    const DeviceArray<float> device_frequencies(frequencies);
    const size_t count = positions.size() * frequencies.size();
    const auto cosines = DeviceArray<float>::Poisoned(count);
    const auto sines = DeviceArray<float>::Poisoned(count);
    RopeAnglesParams params = {.positions = device_positions.data(),
                               .inverse_frequencies = device_frequencies.data(),
                               .rows = static_cast<int64_t>(positions.size()),
                               .half_dim = half,
                               .cosines = cosines.data(),
                               .sines = sines.data()};
    ASSERT_TRUE(ops().rope_angles(context(), params).ok());
    Wait();
    const std::vector<float> got_cosines = cosines.Get();
    const std::vector<float> got_sines = sines.Get();
    std::vector<float> want_cosines(count);
    std::vector<float> want_sines(count);
    params.positions = positions.data();
    params.inverse_frequencies = frequencies.data();
    params.cosines = want_cosines.data();
    params.sines = want_sines.data();
    const TestContext host(ReferenceOps(), 1);
    ASSERT_TRUE(ReferenceOps().rope_angles(*host, params).ok());
    ExpectNear(got_cosines, want_cosines, 2e-7);
    ExpectNear(got_sines, want_sines, 2e-7);
  }
}

void CheckSiluMul(const OpTable& ops, const ExecContext& context, const RowShape& shape) {
  SCOPED_TRACE(testing::Message() << shape.rows << " x " << shape.width << " + " << shape.padding);
  const int64_t gate_up_stride = 2 * shape.width + shape.padding;
  const std::vector<float> gate_up =
      RandomBf16(static_cast<size_t>(shape.rows * gate_up_stride), 4.0f);
  std::vector<float> want(shape.elements());
  SiluMulParams params = {.gate_up = gate_up.data(),
                          .gate_up_stride = gate_up_stride,
                          .rows = shape.rows,
                          .dim = shape.width,
                          .out = want.data(),
                          .out_stride = shape.stride()};
  const TestContext host(ReferenceOps(), 1);
  ASSERT_TRUE(ReferenceOps().silu_mul(*host, params).ok());

  const DeviceArray<uint16_t> device_gate_up = Activations(gate_up);
  const auto out = DeviceArray<uint16_t>::Poisoned(want.size());
  params.gate_up = device_gate_up.data();
  params.out = out.data();
  const absl::Status status = ops.silu_mul(context, params);
  ASSERT_TRUE(status.ok()) << status;
  ASSERT_TRUE(context.queue->Wait().ok());
  ExpectRows(Widened(out), want, shape);
}

TEST_F(SiluMulGpuTest, MultipliesRowsOfEveryWidth) {
  for (const int64_t width : {1, 7, 8, 100, 256, 1000, 2048, 2056, 14336}) {
    for (const int64_t padding : {0, 8, 3}) {
      CheckSiluMul(ops(), context(), {.rows = 3, .width = width, .padding = padding});
    }
  }
}

TEST_F(SiluMulGpuTest, HoldsOverTheWholeRange) {
  std::vector<float> gates = {
      0.0f, -0.0f, 1e-30f, -1e-30f, 80.0f, -80.0f, 88.0f, -88.0f, 1e4f, -1e4f, 3e38f, -3e38f};
  for (int i = -500; i <= 500; ++i) {
    gates.push_back(static_cast<float>(i) * 0.04f);
  }
  gates.push_back(std::numeric_limits<float>::quiet_NaN());
  std::vector<float> gate_up = RoundedTo(gates, DType::kBF16);
  gates = gate_up;
  const std::vector<float> up = RandomBf16(gates.size());
  gate_up.insert(gate_up.end(), up.begin(), up.end());
  const DeviceArray<uint16_t> device_gate_up = Activations(gate_up);
  const auto out = DeviceArray<uint16_t>::Poisoned(gates.size());
  const auto dim = static_cast<int64_t>(gates.size());
  ASSERT_TRUE(ops()
                  .silu_mul(context(),
                            {.gate_up = device_gate_up.data(),
                             .gate_up_stride = 2 * dim,
                             .rows = 1,
                             .dim = dim,
                             .out = out.data(),
                             .out_stride = dim})
                  .ok());
  Wait();
  const std::vector<float> got = Widened(out);
  for (size_t i = 0; i + 1 < gates.size(); ++i) {
    const double g = gates[i];
    const double want = g / (1.0 + std::exp(-g)) * double{up[i]};
    if (std::fabs(want) < 3e38) {
      EXPECT_NEAR(got[i], want, 0x1p-8 * std::fabs(want) + 1e-30) << "gate " << g;
    }
  }
  EXPECT_TRUE(std::isnan(got.back()));
}

}  // namespace
}  // namespace baton::kernels::cuda
