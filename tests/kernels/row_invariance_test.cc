// The bits of a row do not depend on the other rows of the call, their number or the threads.
#include <algorithm>

#include "tests/kernels/support/backends.h"

namespace baton::kernels {
namespace {

constexpr int64_t kRows = 400;
const int64_t kRowCounts[] = {1, 2, 7, 8, 9, 31, 36, 37, 64, 257, 385, 400};

class RowInvarianceTest : public BackendTest {
 protected:
  // run(context, first row, rows) gives the rows' results; every split must give the same bits as
  // all rows at once on one thread.
  template <typename Run>
  void Check(int64_t width, const Run& run) {
    const TestContext one(ops(), 1);
    const TestContext two(ops(), 2);
    const std::vector<float> whole = run(*one, 0, kRows);
    for (const int64_t count : kRowCounts) {
      for (const int64_t first : {int64_t{0}, (kRows - count) / 2, kRows - count}) {
        SCOPED_TRACE(testing::Message() << "rows " << first << " .. " << first + count);
        const auto want = std::span(whole).subspan(static_cast<size_t>(first * width),
                                                   static_cast<size_t>(count * width));
        ExpectSameBits(run(*one, first, count), want);
        ExpectSameBits(run(*two, first, count), want);
      }
    }
  }

  void CheckMatmul(int64_t in, int64_t out, DType dtype) {
    SCOPED_TRACE(testing::Message() << in << " -> " << out << " " << DTypeName(dtype));
    const TestContext pack(ops(), 1);
    const PackedWeight weight(
        ops(), *pack, RandomFloats(static_cast<size_t>(in * out)), out, in, dtype);
    const std::vector<float> x = RandomFloats(static_cast<size_t>(kRows * in));
    const std::vector<float> bias = RandomFloats(static_cast<size_t>(out));
    const std::vector<float> residual = RandomFloats(static_cast<size_t>(kRows * out));
    Check(out, [&](const ExecContext& context, int64_t first, int64_t rows) {
      std::vector<float> result(residual.begin() + first * out,
                                residual.begin() + (first + rows) * out);
      EXPECT_TRUE(ops()
                      .matmul(context,
                              {.x = x.data() + first * in,
                               .x_stride = in,
                               .weight = weight.matrix,
                               .bias = bias.data(),
                               .accumulate = true,
                               .rows = rows,
                               .out = result.data(),
                               .out_stride = out})
                      .ok());
      return result;
    });
  }
};

TEST_P(RowInvarianceTest, MatmulBF16) {
  CheckMatmul(300, 129, DType::kBF16);
  CheckMatmul(520, 256, DType::kBF16);
}

TEST_P(RowInvarianceTest, MatmulF32) { CheckMatmul(300, 100, DType::kF32); }

TEST_P(RowInvarianceTest, RmsNorm) {
  constexpr int64_t kDim = 200;
  const std::vector<float> x = RandomFloats(kRows * kDim);
  const std::vector<float> weight = RandomFloats(kDim);
  Check(kDim, [&](const ExecContext& context, int64_t first, int64_t rows) {
    std::vector<float> result(static_cast<size_t>(rows * kDim));
    EXPECT_TRUE(ops()
                    .rms_norm(context,
                              {.x = x.data() + first * kDim,
                               .x_stride = kDim,
                               .weight = weight.data(),
                               .rows = rows,
                               .dim = kDim,
                               .out = result.data(),
                               .out_stride = kDim})
                    .ok());
    return result;
  });
}

TEST_P(RowInvarianceTest, Rope) {
  constexpr int64_t kHalf = 20;
  constexpr int64_t kWidth = 3 * 2 * kHalf;
  const std::vector<float> x = RandomFloats(kRows * kWidth);
  std::vector<int32_t> positions(kRows);
  std::generate(positions.begin(), positions.end(), [n = 0]() mutable { return n += 37; });
  std::vector<float> frequencies = RandomFloats(kHalf);
  Check(kWidth, [&](const ExecContext& context, int64_t first, int64_t rows) {
    std::vector<float> cosines(static_cast<size_t>(rows * kHalf));
    std::vector<float> sines(cosines.size());
    std::vector<float> result(x.begin() + first * kWidth, x.begin() + (first + rows) * kWidth);
    EXPECT_TRUE(ops()
                    .rope_angles(context,
                                 {.positions = positions.data() + first,
                                  .inverse_frequencies = frequencies.data(),
                                  .rows = rows,
                                  .half_dim = kHalf,
                                  .cosines = cosines.data(),
                                  .sines = sines.data()})
                    .ok());
    EXPECT_TRUE(ops()
                    .rope(context,
                          {.x = result.data(),
                           .x_stride = kWidth,
                           .cosines = cosines.data(),
                           .sines = sines.data(),
                           .rows = rows,
                           .heads = 3,
                           .half_dim = kHalf})
                    .ok());
    return result;
  });
}

TEST_P(RowInvarianceTest, SiluMul) {
  constexpr int64_t kDim = 150;
  const std::vector<float> x = RandomFloats(kRows * 2 * kDim, 3.0f);
  Check(kDim, [&](const ExecContext& context, int64_t first, int64_t rows) {
    std::vector<float> result(static_cast<size_t>(rows * kDim));
    EXPECT_TRUE(ops()
                    .silu_mul(context,
                              {.gate_up = x.data() + first * 2 * kDim,
                               .gate_up_stride = 2 * kDim,
                               .rows = rows,
                               .dim = kDim,
                               .out = result.data(),
                               .out_stride = kDim})
                    .ok());
    return result;
  });
}

INSTANTIATE_TEST_SUITE_P(Backends,
                         RowInvarianceTest,
                         testing::ValuesIn(kBackends),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace baton::kernels
