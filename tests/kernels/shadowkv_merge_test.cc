// Attention of format `shadowkv` merged with attention over keys that are elsewhere.
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "absl/status/status.h"

#include "kernels/core/exec_context.h"
#include "kernels/ops/op_table.h"
#include "kernels/ops/shadowkv_params.h"
#include "kernels/reference/reference_ops.h"
#include "tests/kernels/support/backends.h"
#include "tests/kernels/support/shadowkv_problem.h"

namespace baton::kernels {
namespace {

constexpr float kNone = -std::numeric_limits<float>::infinity();
constexpr int64_t kHeads = 4;
constexpr int64_t kHeadDim = 64;
constexpr int64_t kWidth = kHeads * kHeadDim;

class ShadowKvMergeTest : public BackendTest {
 protected:
  static ShadowKvShape Shape() {
    ShadowKvShape shape;
    shape.config.outlier_chunks = 2;
    shape.config.value_bits = 8;
    shape.generated_tokens = 140;
    return shape;
  }
  // Selection and attention of `q` when the newest token is at `position`.
  static absl::Status Attend(const OpTable& ops,
                             const ExecContext& context,
                             const ShadowKvProblem& problem,
                             int64_t position,
                             const std::vector<float>& q,
                             std::vector<float>& out,
                             std::vector<float>& lse) {
    ShadowKvSequence sequence = problem.Sequence();
    sequence.position = static_cast<int32_t>(position);
    sequence.cache = nullptr;
    const int64_t stride = problem.layout().config.budget_chunks();
    std::vector<int32_t> ids(static_cast<size_t>(problem.layout().config.kv_heads * stride));
    const absl::Status status = ops.shadowkv_select(context,
                                                    {.q = q.data(),
                                                     .q_stride = kWidth,
                                                     .sequences = &sequence,
                                                     .num_sequences = 1,
                                                     .heads = kHeads,
                                                     .scale = 0.125f,
                                                     .chunk_ids = ids.data(),
                                                     .chunk_ids_stride = stride});
    EXPECT_TRUE(status.ok()) << status;
    return ops.shadowkv_attention(context,
                                  {.q = q.data(),
                                   .q_stride = kWidth,
                                   .sequences = &sequence,
                                   .num_sequences = 1,
                                   .heads = kHeads,
                                   .scale = 0.125f,
                                   .chunk_ids = ids.data(),
                                   .chunk_ids_stride = stride,
                                   .rope = problem.rope(),
                                   .key_bias = problem.key_bias(),
                                   .out = out.data(),
                                   .out_stride = kWidth,
                                   .lse = lse.empty() ? nullptr : lse.data()});
  }
};

TEST_P(ShadowKvMergeTest, NoOtherKeysLeaveTheBits) {
  const ShadowKvShape shape = Shape();
  const ShadowKvContext context(ops(), 2, shape);
  ShadowKvProblem problem(ops(), *context, shape);
  for (int64_t token = 0; token < shape.generated_tokens; ++token) {
    problem.Append(ops(), *context);
  }
  const std::vector<float> q = RandomFloats(kWidth);
  std::vector<float> want(kWidth, NAN);
  std::vector<float> none;
  ASSERT_TRUE(Attend(ops(), *context, problem, problem.tokens() - 1, q, want, none).ok());
  std::vector<float> got(kWidth, NAN);
  std::vector<float> lse(kHeads, kNone);
  ASSERT_TRUE(Attend(ops(), *context, problem, problem.tokens() - 1, q, got, lse).ok());
  ExpectSameBits(got, want);
  for (const float value : lse) EXPECT_TRUE(std::isfinite(value));
}

// The newest token held may be the prompt's last.
TEST_P(ShadowKvMergeTest, OtherKeysShareTheSoftmax) {
  const ShadowKvShape shape = Shape();
  const ShadowKvContext context(ops(), 2, shape);
  ShadowKvProblem problem(ops(), *context, shape);
  for (const int64_t generated : {int64_t{0}, int64_t{1}, shape.generated_tokens}) {
    SCOPED_TRACE(testing::Message() << generated << " generated; " << SeedMessage());
    while (problem.tokens() < shape.prompt_tokens + generated) {
      problem.Append(ops(), *context);
    }
    const int64_t newest = problem.tokens() - 1;
    const std::vector<float> q = RandomFloats(kWidth);
    std::vector<float> alone(kWidth);
    std::vector<float> alone_lse(kHeads, kNone);
    ASSERT_TRUE(Attend(ReferenceOps(), *context, problem, newest, q, alone, alone_lse).ok());
    for (const float other_lse : {-2.0f, 3.0f, 40.0f}) {
      const std::vector<float> other = RandomFloats(kWidth);
      std::vector<float> out = other;
      std::vector<float> lse(kHeads, other_lse);
      ASSERT_TRUE(Attend(ops(), *context, problem, newest, q, out, lse).ok());
      for (size_t head = 0; head < kHeads; ++head) {
        const double total =
            std::log(std::exp(double{alone_lse[head]}) + std::exp(double{other_lse}));
        EXPECT_NEAR(lse[head], total, 2e-5);
        const double mine = std::exp(double{alone_lse[head]} - total);
        for (size_t i = head * kHeadDim; i < (head + 1) * kHeadDim; ++i) {
          ASSERT_NEAR(out[i], alone[i] * mine + other[i] * (1.0 - mine), 2e-4);
        }
      }
    }
  }
}

TEST_P(ShadowKvMergeTest, ADecodeStepNeedsItsOwnToken) {
  const ShadowKvShape shape = Shape();
  const ShadowKvContext context(ops(), 1, shape);
  ShadowKvProblem problem(ops(), *context, shape);
  const std::vector<float> q = RandomFloats(kWidth);
  std::vector<float> out(kWidth);
  std::vector<float> none;
  std::vector<float> lse(kHeads, kNone);
  const int64_t last = shape.prompt_tokens - 1;
  EXPECT_EQ(Attend(ops(), *context, problem, last, q, out, none).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(Attend(ops(), *context, problem, last, q, out, lse).ok());
}

INSTANTIATE_TEST_SUITE_P(Backends,
                         ShadowKvMergeTest,
                         testing::ValuesIn(kBackends),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace baton::kernels
