// Values of coded tokens in blocks of their own: the same bytes elsewhere, and the same results.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/status.h"

#include "kernels/kv_format/shadowkv.h"
#include "kernels/ops/shadowkv_params.h"
#include "tests/kernels/support/backends.h"
#include "tests/kernels/support/shadowkv_problem.h"

namespace baton::kernels {
namespace {

// Enough generated tokens for a block that is coded and one that will be.
constexpr int64_t kGenerated = 150;

ShadowKvShape Shape(int32_t value_bits, bool apart) {
  ShadowKvShape shape;
  shape.config.value_bits = value_bits;
  shape.config.outlier_chunks = 2;
  shape.config.values_apart = apart;
  shape.generated_tokens = kGenerated;
  return shape;
}

class ShadowKvValuesApartTest : public BackendTest {};

TEST_P(ShadowKvValuesApartTest, TheyChangeNoBit) {
  for (const int32_t bits : {2, 4, 8, 16}) {
    SCOPED_TRACE(bits);
    const ShadowKvShape shape = Shape(bits, /*apart=*/true);
    const ShadowKvContext context(ops(), 2, shape);
    ShadowKvProblem together(ops(), *context, Shape(bits, /*apart=*/false));
    ShadowKvProblem apart(ops(), *context, shape);
    for (int64_t step = 0; step < kGenerated; ++step) {
      const ShadowKvStep want = together.Step(ops(), *context);
      const ShadowKvStep got = apart.Step(ops(), *context);
      ASSERT_EQ(got.chunk_ids, want.chunk_ids) << "step " << step;
      ASSERT_EQ(got.out, want.out) << "step " << step;
    }
  }
}

TEST_P(ShadowKvValuesApartTest, BlocksHoldWhatTheSectionsHeld) {
  const ShadowKvShape shape = Shape(4, /*apart=*/true);
  const ShadowKvContext context(ops(), 2, shape);
  ShadowKvProblem together(ops(), *context, Shape(4, /*apart=*/false));
  ShadowKvProblem apart(ops(), *context, shape);
  for (int64_t step = 0; step < kGenerated; ++step) {
    together.Append(ops(), *context);
    apart.Append(ops(), *context);
  }
  const ShadowKvPromptLayout& layout = together.layout();
  const size_t begin = layout.coded_begin + layout.coded.values;
  EXPECT_TRUE(
      std::ranges::equal(apart.value_prompt_bytes().first(apart.layout().coded.value_bytes),
                         together.prompt_bytes().subspan(begin, apart.layout().coded.value_bytes)));
  const ShadowKvTailLayout tail = together.tail_layout();
  ASSERT_EQ(tail.BlocksAt(together.tokens()), 1);
  const size_t block_bytes = apart.tail_layout().block.value_bytes;
  EXPECT_TRUE(std::ranges::equal(
      apart.value_tail_bytes().first(block_bytes),
      together.tail_bytes().subspan(tail.block_begin(0) + tail.block.values, block_bytes)));
}

TEST_P(ShadowKvValuesApartTest, TheyAreRefusedWithoutTheirBlocks) {
  const ShadowKvShape shape = Shape(4, /*apart=*/true);
  const ShadowKvContext context(ops(), 2, shape);
  ShadowKvProblem problem(ops(), *context, shape);
  ShadowKvEncodeParams encode = problem.EncodeParams(const_cast<std::byte*>(problem.prompt()));
  encode.values = nullptr;
  EXPECT_EQ(ops().shadowkv_encode(*context, encode).code(), absl::StatusCode::kInvalidArgument);

  problem.Append(ops(), *context);
  const auto append = [&](const ShadowKvSequence& sequence) {
    return ops()
        .shadowkv_append(*context,
                         {.k = problem.key(0),
                          .k_stride = shape.config.width(),
                          .v = problem.value(0),
                          .v_stride = shape.config.width(),
                          .sequences = &sequence,
                          .num_sequences = 1,
                          .rope = problem.rope()})
        .code();
  };
  ShadowKvSequence sequence = problem.Sequence();
  sequence.value_prompt = nullptr;
  EXPECT_EQ(append(sequence), absl::StatusCode::kInvalidArgument);
  sequence = problem.Sequence();
  sequence.value_tail = nullptr;
  EXPECT_EQ(append(sequence), absl::StatusCode::kInvalidArgument);
}

INSTANTIATE_TEST_SUITE_P(Backends,
                         ShadowKvValuesApartTest,
                         testing::ValuesIn(kBackends),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace baton::kernels
