// Products with what goes with them on every back end: bit by bit what its own ops make of it one
// after the other, and close to what the reference makes of it.
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/core/dtype.h"
#include "kernels/core/exec_context.h"
#include "kernels/ops/op_table.h"
#include "kernels/ops/params.h"
#include "kernels/reference/reference_ops.h"
#include "tests/kernels/support/backends.h"

namespace baton::kernels {
namespace {

constexpr float kEpsilon = 1e-5f;

struct Shape {
  int64_t rows = 0;
  int64_t in = 0;
  int64_t out = 0;  // features of the weight
  bool norm = false;
  int64_t heads = 0;  // rotated, of 2 * half_dim
  int64_t half_dim = 0;
  bool gated = false;
  bool bias = false;

  int64_t x_stride() const { return in + 3; }
  int64_t width() const { return gated ? out / 2 : out; }
  int64_t out_stride() const { return width() + 5; }
};

std::vector<float> Floats(int64_t count, float scale = 1.0f) {
  return RandomFloats(static_cast<size_t>(count), scale);
}

// One call and the memory that it is about.
class Problem {
 public:
  explicit Problem(const Shape& shape)
      : shape_(shape),
        x_(Floats(shape.rows * shape.x_stride(), 3.0f)),
        weight_(Floats(shape.out * shape.in, 1.0f / std::sqrt(static_cast<float>(shape.in)))),
        bias_(Floats(shape.out)),
        before_(Floats(shape.rows * shape.out_stride())),
        norm_(Floats(shape.in)),
        cosines_(Floats(shape.rows * shape.half_dim)),
        sines_(Floats(shape.rows * shape.half_dim)) {}

  // One call with everything; the rows of x are normalised in place where `in_place`.
  std::vector<float> Whole(const OpTable& ops, bool in_place = false) {
    const TestContext context(ops, 2);
    const PackedWeight packed(ops, *context, weight_, shape_.out, shape_.in, DType::kBF16);
    std::vector<float> x = x_;
    std::vector<float> normed(static_cast<size_t>(shape_.rows * shape_.in));
    std::vector<float> gate_up(static_cast<size_t>(shape_.rows * shape_.out));
    std::vector<float> out = before_;
    MatmulParams params = Product(packed, x.data(), out.data());
    if (shape_.norm) {
      params.norm = {.weight = norm_.data(),
                     .epsilon = kEpsilon,
                     .normed = in_place ? x.data() : normed.data()};
    }
    if (shape_.heads > 0) {
      params.rope = {.cosines = cosines_.data(),
                     .sines = sines_.data(),
                     .heads = shape_.heads,
                     .half_dim = shape_.half_dim};
    }
    if (shape_.gated) params.gate_up = gate_up.data();
    const absl::Status status = ops.matmul(*context, params);
    EXPECT_TRUE(status.ok()) << status;
    return out;
  }

  std::vector<float> InParts(const OpTable& ops) {
    const TestContext context(ops, 2);
    const PackedWeight packed(ops, *context, weight_, shape_.out, shape_.in, DType::kBF16);
    std::vector<float> x = shape_.norm ? Normed(ops, *context) : x_;
    std::vector<float> gate_up(static_cast<size_t>(shape_.rows * shape_.out));
    std::vector<float> out = before_;
    MatmulParams product = Product(packed, x.data(), shape_.gated ? gate_up.data() : out.data());
    product.x_stride = shape_.norm ? shape_.in : shape_.x_stride();
    product.out_stride = shape_.gated ? shape_.out : shape_.out_stride();
    EXPECT_TRUE(ops.matmul(*context, product).ok());
    if (shape_.heads > 0) Rotate(ops, *context, out.data());
    if (shape_.gated) Gate(ops, *context, gate_up.data(), out.data());
    return out;
  }

 private:
  MatmulParams Product(const PackedWeight& packed, const float* x, float* out) const {
    return {.x = x,
            .x_stride = shape_.x_stride(),
            .weight = packed.matrix,
            .bias = shape_.bias ? bias_.data() : nullptr,
            .rows = shape_.rows,
            .out = out,
            .out_stride = shape_.out_stride()};
  }
  std::vector<float> Normed(const OpTable& ops, const ExecContext& context) const {
    std::vector<float> normed(static_cast<size_t>(shape_.rows * shape_.in));
    EXPECT_TRUE(ops.rms_norm(context,
                             {.x = x_.data(),
                              .x_stride = shape_.x_stride(),
                              .weight = norm_.data(),
                              .epsilon = kEpsilon,
                              .rows = shape_.rows,
                              .dim = shape_.in,
                              .out = normed.data(),
                              .out_stride = shape_.in})
                    .ok());
    return normed;
  }
  void Rotate(const OpTable& ops, const ExecContext& context, float* x) const {
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
  void Gate(const OpTable& ops,
            const ExecContext& context,
            const float* gate_up,
            float* out) const {
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
  std::vector<float> x_;
  std::vector<float> weight_;
  std::vector<float> bias_;
  std::vector<float> before_;
  std::vector<float> norm_;
  std::vector<float> cosines_;
  std::vector<float> sines_;
};

class MatmulPartsTest : public BackendTest {
 protected:
  void Check(const Shape& shape) const {
    SCOPED_TRACE(testing::Message() << shape.rows << " x " << shape.in << " x " << shape.out);
    Problem problem(shape);
    const std::vector<float> got = problem.Whole(ops());
    ExpectSameBits(got, problem.InParts(ops()));
    ExpectNear(got, problem.Whole(ReferenceOps()), 1e-5);
  }
};

TEST_P(MatmulPartsTest, RowsAreNormalisedBefore) {
  for (const int64_t rows : {1, 2, 9, 45}) {
    Check({.rows = rows, .in = 72, .out = 33, .norm = true, .bias = true});
  }
}

TEST_P(MatmulPartsTest, TheFirstHeadsAreRotated) {
  for (const int64_t rows : {1, 9, 45}) {
    Check({.rows = rows, .in = 40, .out = 70, .norm = true, .heads = 5, .half_dim = 6});
    Check({.rows = rows, .in = 40, .out = 64, .heads = 4, .half_dim = 8, .bias = true});
  }
}

TEST_P(MatmulPartsTest, TheResultIsGateTimesUp) {
  for (const int64_t rows : {1, 9, 45}) {
    Check({.rows = rows, .in = 72, .out = 34, .norm = true, .gated = true});
    Check({.rows = rows, .in = 300, .out = 128, .gated = true, .bias = true});
  }
}

TEST_P(MatmulPartsTest, XMayTakeItsNormalisedRows) {
  Shape shape = {.rows = 1, .in = 72, .out = 48, .norm = true};
  Problem problem(shape);
  ExpectSameBits(problem.Whole(ops(), /*in_place=*/true), problem.Whole(ops()));
}

TEST_P(MatmulPartsTest, NoRowsDoNothing) {
  Check({.in = 16, .out = 16, .norm = true, .heads = 1, .half_dim = 8});
  Check({.in = 16, .out = 16, .norm = true, .gated = true});
}

INSTANTIATE_TEST_SUITE_P(Backends, MatmulPartsTest, testing::ValuesIn(kBackends));

}  // namespace
}  // namespace baton::kernels
