// Products with what goes with them, norm of x, rotation and gate of the result: what ops of their
// own make of it, on the device too, which have tests of their own.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"

#include "kernels/core/dtype.h"
#include "kernels/core/exec_context.h"
#include "kernels/ops/op_table.h"
#include "kernels/ops/params.h"
#include "tests/gpu/support/gpu_test.h"
#include "tests/kernels/support/backends.h"

namespace baton::kernels::cuda {
namespace {

struct Shape {
  int64_t rows = 0;
  int64_t in = 0;
  int64_t out = 0;  // features of the weight
  bool norm = false;
  int64_t heads = 0;  // rotated, of 2 * half_dim
  int64_t half_dim = 0;
  bool gated = false;
  bool bias = false;
  bool accumulate = false;
  bool wide = false;
  int64_t padding = 0;  // elements between rows of x and of out

  int64_t x_stride() const { return in + padding; }
  int64_t width() const { return gated ? out / 2 : out; }
  int64_t out_stride() const { return width() + padding; }
};

std::vector<float> RandomBf16(int64_t count, float scale = 1.0f) {
  return RoundedTo(RandomFloats(static_cast<size_t>(count), scale), DType::kBF16);
}

// Inputs of one call on the device.
class Problem {
 public:
  explicit Problem(const Shape& shape)
      : shape_(shape),
        x_(Activations(RandomBf16(shape.rows * shape.x_stride(), 3.0f))),
        weight_(Activations(
            RandomBf16(shape.out * shape.in, 1.0f / std::sqrt(static_cast<float>(shape.in))))),
        bias_(RandomBf16(shape.out)),
        before_(RandomBf16(shape.rows * shape.out_stride())),
        norm_(RandomFloats(static_cast<size_t>(shape.in))),
        angles_(RandomFloats(static_cast<size_t>(shape.rows * std::max<int64_t>(1, shape.half_dim)),
                             2.0f)),
        cosines_(Mapped(angles_, [](float x) { return std::cos(x); })),
        sines_(Mapped(angles_, [](float x) { return std::sin(x); })) {}

  // Rows [first, first + rows) of what the op makes of it: one call with everything.
  std::vector<float> Whole(const OpTable& ops,
                           const ExecContext& context,
                           int64_t first,
                           int64_t rows) const {
    const auto normed = Empty(rows * shape_.in);
    const auto gate_up = Empty(rows * shape_.out);
    MatmulParams params = Product(first, rows);
    if (shape_.norm) {
      params.norm = {.weight = norm_.data(), .epsilon = kEpsilon, .normed = normed.data()};
    }
    if (shape_.heads > 0) {
      params.rope = {.cosines = cosines_.data() + first * shape_.half_dim,
                     .sines = sines_.data() + first * shape_.half_dim,
                     .heads = shape_.heads,
                     .half_dim = shape_.half_dim};
    }
    if (shape_.gated) params.gate_up = gate_up.data();
    return Run(context, params, [&](const MatmulParams& call) {
      EXPECT_TRUE(ops.matmul(context, call).ok());
    });
  }

  // All rows, op by op.
  std::vector<float> InParts(const OpTable& ops, const ExecContext& context) const {
    const auto normed = Empty(shape_.rows * shape_.in);
    const auto gate_up = Empty(shape_.rows * shape_.out);
    return Run(context, Product(0, shape_.rows), [&](const MatmulParams& call) {
      MatmulParams product = call;
      if (shape_.norm) {
        Normalise(ops, context, normed.data());
        product.x = normed.data();
        product.x_stride = shape_.in;
      }
      if (shape_.gated) {
        product.out = gate_up.data();
        product.out_stride = shape_.out;
      }
      EXPECT_TRUE(ops.matmul(context, product).ok());
      if (shape_.heads > 0) Rotate(ops, context, call.out);
      if (shape_.gated) Gate(ops, context, gate_up.data(), call.out);
    });
  }

 private:
  static constexpr float kEpsilon = 1e-5f;

  template <typename Map>
  static std::vector<float> Mapped(std::vector<float> values, const Map& map) {
    std::transform(values.begin(), values.end(), values.begin(), map);
    return values;
  }
  static DeviceArray<uint16_t> Empty(int64_t count) {
    return DeviceArray<uint16_t>::Poisoned(static_cast<size_t>(count));
  }

  MatmulParams Product(int64_t first, int64_t rows) const {
    return {.x = x_.data() + first * shape_.x_stride(),
            .x_stride = shape_.x_stride(),
            .weight = {.data = reinterpret_cast<const std::byte*>(weight_.data()),
                       .out_features = shape_.out,
                       .in_features = shape_.in},
            .bias = shape_.bias ? bias_.data() : nullptr,
            .accumulate = shape_.accumulate,
            .rows = rows,
            .out_stride = shape_.out_stride(),
            .wide = shape_.wide};
  }

  // Gives `run` the parameters with a result, which it returns.
  template <typename Call>
  std::vector<float> Run(const ExecContext& context, MatmulParams params, const Call& run) const {
    const auto elements = static_cast<size_t>(params.rows * shape_.out_stride());
    if (shape_.wide) {
      const auto out = DeviceArray<float>::Poisoned(elements);
      params.out = out.data();
      run(params);
      EXPECT_TRUE(context.queue->Wait().ok());
      return out.Get();
    }
    const DeviceArray<uint16_t> out =
        shape_.accumulate ? Activations(before_) : DeviceArray<uint16_t>::Poisoned(elements);
    params.out = out.data();
    run(params);
    EXPECT_TRUE(context.queue->Wait().ok());
    return Widened(out);
  }

  void Normalise(const OpTable& ops, const ExecContext& context, void* out) const {
    EXPECT_TRUE(ops.rms_norm(context,
                             {.x = x_.data(),
                              .x_stride = shape_.x_stride(),
                              .weight = norm_.data(),
                              .epsilon = kEpsilon,
                              .rows = shape_.rows,
                              .dim = shape_.in,
                              .out = out,
                              .out_stride = shape_.in})
                    .ok());
  }
  void Rotate(const OpTable& ops, const ExecContext& context, void* x) const {
    EXPECT_TRUE(ops.rope(context,
                         {.x = x,
                          .x_stride = shape_.out_stride(),
                          .cosines = cosines_.data(),
                          .sines = sines_.data(),
                          .rows = shape_.rows,
                          .heads = shape_.heads,
                          .half_dim = shape_.half_dim})
                    .ok());
  }
  void Gate(const OpTable& ops, const ExecContext& context, const void* gate_up, void* out) const {
    EXPECT_TRUE(ops.silu_mul(context,
                             {.gate_up = gate_up,
                              .gate_up_stride = shape_.out,
                              .rows = shape_.rows,
                              .dim = shape_.out / 2,
                              .out = out,
                              .out_stride = shape_.out_stride()})
                    .ok());
  }

  Shape shape_;
  DeviceArray<uint16_t> x_;
  DeviceArray<uint16_t> weight_;
  DeviceArray<float> bias_;
  std::vector<float> before_;
  DeviceArray<float> norm_;
  std::vector<float> angles_;
  DeviceArray<float> cosines_;
  DeviceArray<float> sines_;
};

class MatmulPartsGpuTest : public GpuTest {
 protected:
  // A normalised value, or one that is rotated or gated, may be a rounding to bf16 apart, where
  // sums of squares are added up in another order; the largest results are a few units.
  void Check(const Shape& shape) const {
    SCOPED_TRACE(testing::Message()
                 << shape.rows << " rows, " << shape.in << " to " << shape.out << " features + "
                 << shape.padding << (shape.norm ? ", norm" : "") << ", " << shape.heads << " heads"
                 << (shape.gated ? ", gated" : "") << (shape.bias ? ", bias" : "")
                 << (shape.accumulate ? ", accumulate" : "") << (shape.wide ? ", wide" : ""));
    const Problem problem(shape);
    const std::vector<float> want = problem.InParts(ops(), context());
    const std::vector<float> got = problem.Whole(ops(), context(), 0, shape.rows);
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < got.size(); ++i) {
      if (static_cast<int64_t>(i) % shape.out_stride() < shape.width()) {
        ASSERT_NEAR(got[i], want[i], 0x1p-7 * std::fabs(want[i]) + 0.02)
            << "element " << i << "; " << SeedMessage();
      } else if (shape.accumulate) {
        ASSERT_EQ(got[i], want[i]) << "between rows, element " << i;
      } else {
        ASSERT_TRUE(std::isnan(got[i])) << "between rows, element " << i;
      }
    }
  }
  void CheckRowsOneByOne(const Shape& shape) const {
    const Problem problem(shape);
    const std::vector<float> together = problem.Whole(ops(), context(), 0, shape.rows);
    for (int64_t row = 0; row < shape.rows; ++row) {
      const std::vector<float> alone = problem.Whole(ops(), context(), row, 1);
      EXPECT_TRUE(
          std::equal(alone.begin(), alone.end(), together.begin() + row * shape.out_stride()))
          << "row " << row << "; " << SeedMessage();
    }
  }
};

TEST_F(MatmulPartsGpuTest, NormalisesAndRotates) {
  for (int64_t rows = 1; rows <= 9; ++rows) {
    for (const bool bias : {false, true}) {
      Check({.rows = rows,
             .in = 4096,
             .out = 640,
             .norm = true,
             .heads = 4,
             .half_dim = 64,
             .bias = bias});
    }
  }
}

TEST_F(MatmulPartsGpuTest, NormalisesAndGates) {
  for (int64_t rows = 1; rows <= 9; ++rows) {
    for (const bool bias : {false, true}) {
      Check({.rows = rows, .in = 2048, .out = 1024, .norm = true, .gated = true, .bias = bias});
    }
  }
}

TEST_F(MatmulPartsGpuTest, NormalisesInFrontOfLogitsAndResiduals) {
  for (const int64_t rows : {1, 3, 8, 9}) {
    Check({.rows = rows, .in = 1024, .out = 1000, .norm = true, .wide = true});
    Check({.rows = rows, .in = 1024, .out = 1000, .norm = true, .accumulate = true});
  }
}

TEST_F(MatmulPartsGpuTest, SizesMayBeOdd) {
  for (const int64_t rows : {1, 5, 9}) {
    Check({.rows = rows, .in = 1032, .out = 42, .norm = true, .gated = true, .padding = 8});
    Check({.rows = rows, .in = 40, .out = 100, .norm = true, .heads = 3, .half_dim = 8});
    Check({.rows = rows, .in = 512, .out = 90, .norm = true, .heads = 3, .half_dim = 5});
    Check({.rows = rows, .in = 37, .out = 64, .norm = true, .heads = 1, .half_dim = 32});
    Check({.rows = rows, .in = 264, .out = 51, .norm = true, .padding = 3});
  }
}

TEST_F(MatmulPartsGpuTest, EachPartStandsAlone) {
  for (const int64_t rows : {2, 8}) {
    Check({.rows = rows, .in = 1544, .out = 256, .norm = true});
    Check({.rows = rows, .in = 1544, .out = 256, .heads = 2, .half_dim = 64});
    Check({.rows = rows, .in = 1544, .out = 256, .gated = true});
  }
}

// Rows that with their norm are more than a block's shared memory holds.
TEST_F(MatmulPartsGpuTest, WideRowsAreNormalisedToo) {
  for (const int64_t rows : {1, 4, 8}) {
    Check({.rows = rows, .in = 16384, .out = 64, .norm = true, .gated = true});
  }
}

TEST_F(MatmulPartsGpuTest, MoreTilesThanBlocks) {
  Check({.rows = 1, .in = 264, .out = 12000, .norm = true, .gated = true});
  Check({.rows = 3, .in = 1032, .out = 6400, .norm = true, .heads = 40, .half_dim = 64});
  Check({.rows = 2, .in = 2056, .out = 9000, .accumulate = true});
}

TEST_F(MatmulPartsGpuTest, RowsDoNotDependOnEachOther) {
  CheckRowsOneByOne({.rows = 8, .in = 1032, .out = 512, .norm = true, .heads = 3, .half_dim = 64});
  CheckRowsOneByOne({.rows = 7, .in = 4096, .out = 640, .norm = true, .gated = true});
}

}  // namespace
}  // namespace baton::kernels::cuda
