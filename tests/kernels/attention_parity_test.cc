// Paged attention of every CPU back end against the reference, and the reference against a case
// done by hand.
#include <cmath>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "kernels/core/buffer.h"
#include "kernels/core/dtype.h"
#include "kernels/kv_format/dense.h"
#include "kernels/ops/op_table.h"
#include "kernels/ops/params.h"
#include "kernels/reference/reference_ops.h"
#include "tests/kernels/support/backends.h"
#include "tests/kernels/support/paged_problem.h"

namespace baton::kernels {
namespace {

TEST(ReferenceAttentionTest, MatchesACaseDoneByHand) {
  const OpTable& ops = ReferenceOps();
  const TestContext context(ops, 1);
  const DensePageLayout layout = {
      .page_tokens = 2, .kv_heads = 1, .head_dim = 1, .dtype = DType::kF32};
  // Tokens 0 and 1 in page 1, token 2 in page 0. Keys 0, ln 2, ln 3; values 10, 20, 40.
  Buffer pages(2 * layout.stride_bytes());
  const float ln2 = std::log(2.0f);
  const float ln3 = std::log(3.0f);
  float* page0 = pages.as<float>();
  float* page1 = pages.as<float>() + layout.stride_bytes() / sizeof(float);
  page1[0] = 0.0f;
  page1[1] = ln2;
  page1[2] = 10.0f;
  page1[3] = 20.0f;
  page0[0] = ln3;
  page0[2] = 40.0f;
  const int32_t page_table[] = {1, 0};
  const float q[] = {1.0f, 1.0f};
  const int32_t positions[] = {1, 2};
  const SequenceRows sequence = {.row_begin = 0, .row_count = 2, .page_table = page_table};
  float out[2] = {};
  PagedAttentionParams params = {.q = q,
                                 .q_stride = 1,
                                 .positions = positions,
                                 .sequences = &sequence,
                                 .num_sequences = 1,
                                 .pages = {.base = pages.data(), .layout = layout},
                                 .heads = 1,
                                 .scale = 1.0f,
                                 .out = out,
                                 .out_stride = 1};
  ASSERT_TRUE(ops.paged_attention(*context, params).ok());
  EXPECT_NEAR(out[0], (1 * 10 + 2 * 20) / 3.0, 1e-5);
  EXPECT_NEAR(out[1], (1 * 10 + 2 * 20 + 3 * 40) / 6.0, 1e-5);
  params.sliding_window = 2;
  ASSERT_TRUE(ops.paged_attention(*context, params).ok());
  EXPECT_NEAR(out[1], (2 * 20 + 3 * 40) / 5.0, 1e-5);
}

using Case = std::tuple<std::string, DType>;

class AttentionParityTest : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    ops_ = FindBackend(std::get<0>(GetParam()));
    if (ops_ == nullptr) {
      GTEST_SKIP() << "this machine has no " << std::get<0>(GetParam());
    }
  }

  void Check(PagedShape shape, std::vector<int32_t> lengths, std::vector<RowRange> ranges) {
    shape.layout.dtype = std::get<1>(GetParam());
    SCOPED_TRACE(testing::Message()
                 << "heads " << shape.heads << " kv_heads " << shape.layout.kv_heads << " head_dim "
                 << shape.layout.head_dim << " page_tokens " << shape.layout.page_tokens
                 << " window " << shape.sliding_window);
    const TestContext context(*ops_, 2);
    const PagedProblem problem(*ops_, *context, shape, std::move(lengths));
    ExpectNear(problem.Attend(*ops_, *context, ranges),
               problem.Attend(ReferenceOps(), *context, ranges),
               2e-6);
  }

  const OpTable* ops_ = nullptr;
};

TEST_P(AttentionParityTest, GroupsOfQueryHeads) {
  for (const int64_t group : {1, 2, 4, 7}) {
    PagedShape shape;
    shape.layout.kv_heads = 2;
    shape.layout.head_dim = 32;
    shape.heads = 2 * group;
    Check(shape, {150}, {{0, 0, 150}});
  }
}

TEST_P(AttentionParityTest, HeadDims) {
  for (const int32_t head_dim : {1, 2, 3, 8, 16, 24, 40, 64, 80, 96, 128, 256}) {
    PagedShape shape;
    shape.layout.head_dim = head_dim;
    Check(shape, {90}, {{0, 0, 90}});
  }
}

TEST_P(AttentionParityTest, PageSizes) {
  for (const int32_t page_tokens : {1, 5, 16, 32, 64, 100, 256}) {
    PagedShape shape;
    shape.layout.page_tokens = page_tokens;
    shape.layout.head_dim = 16;
    Check(shape, {203}, {{0, 0, 203}});
  }
}

TEST_P(AttentionParityTest, SlidingWindows) {
  for (const int32_t window : {1, 2, 31, 64, 65, 100, 1000}) {
    PagedShape shape;
    shape.layout.head_dim = 16;
    shape.sliding_window = window;
    Check(shape, {300}, {{0, 0, 300}});
    Check(shape, {300}, {{0, 299, 1}});
  }
}

TEST_P(AttentionParityTest, PrefillChunksAndDecodeRowsTogether) {
  const PagedShape shape;
  Check(shape, {400, 77, 1, 130}, {{0, 200, 200}, {1, 76, 1}, {2, 0, 1}, {3, 64, 66}});
}

TEST_P(AttentionParityTest, NoRowsDoNothing) {
  Check(PagedShape(), {4}, {});
  Check(PagedShape(), {4, 5}, {{0, 2, 0}, {1, 3, 2}});
}

INSTANTIATE_TEST_SUITE_P(
    Backends,
    AttentionParityTest,
    testing::Combine(testing::ValuesIn(kCpuBackends),
                     testing::Values(DType::kF32, DType::kBF16, DType::kF8E4M3)),
    [](const testing::TestParamInfo<Case>& test) {
      return std::get<0>(test.param) + "_" + std::string(DTypeName(std::get<1>(test.param)));
    });

}  // namespace
}  // namespace baton::kernels
