// Attention over keys that lie in several places: each call sees a range of them, and its results
// are merged into those of the calls before.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "kernels/core/dtype.h"
#include "kernels/reference/reference_ops.h"
#include "tests/kernels/support/backends.h"
#include "tests/kernels/support/paged_problem.h"

namespace baton::kernels {
namespace {

constexpr int32_t kLength = 200;

class AttentionMergeTest : public BackendTest {
 protected:
  // Rows [begin, kLength) over the keys before `begin` and, by a second call, those from it on.
  AttentionState InTwoParts(const PagedProblem& problem,
                            const TestContext& context,
                            int32_t begin,
                            bool old_first) const {
    const RowRange range = {0, begin, kLength - begin};
    KeySpan old_keys = {.end = begin, .merge = !old_first};
    KeySpan new_keys = {.begin = begin, .merge = old_first};
    AttentionState state;
    problem.AttendKeys(ops(), *context, {&range, 1}, old_first ? old_keys : new_keys, state);
    problem.AttendKeys(ops(), *context, {&range, 1}, old_first ? new_keys : old_keys, state);
    return state;
  }

  // Of kLength rows, those from `begin` on.
  static std::span<const float> LastRows(const std::vector<float>& rows, int32_t begin) {
    const size_t width = rows.size() / kLength;
    return std::span(rows).subspan(static_cast<size_t>(begin) * width);
  }

  void CheckParts(const PagedShape& shape) const {
    SCOPED_TRACE(testing::Message()
                 << "head_dim " << shape.layout.head_dim << " page_tokens "
                 << shape.layout.page_tokens << " dtype " << DTypeName(shape.layout.dtype)
                 << " window " << shape.sliding_window << "; " << SeedMessage());
    const TestContext context(ops(), 2);
    const PagedProblem problem(ops(), *context, shape, {kLength});
    const RowRange all = {0, 0, kLength};
    AttentionState whole;
    problem.AttendKeys(ReferenceOps(), *context, {&all, 1}, {}, whole);
    for (const int32_t begin : {1, 15, 16, 63, 64, 65, 130, kLength - 1}) {
      for (const bool old_first : {true, false}) {
        SCOPED_TRACE(testing::Message() << "from " << begin << " old first " << old_first);
        const AttentionState parts = InTwoParts(problem, context, begin, old_first);
        ExpectNear(parts.out, LastRows(whole.out, begin), 1e-5);
        ExpectNear(parts.lse, LastRows(whole.lse, begin), 1e-5);
      }
    }
  }
};

TEST_P(AttentionMergeTest, TwoRangesOfKeysGiveWhatAllKeysGive) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF8E4M3}) {
    for (const auto& [head_dim, page_tokens] : {std::pair{64, 32}, {24, 5}, {128, 16}}) {
      PagedShape shape;
      shape.layout.dtype = dtype;
      shape.layout.head_dim = head_dim;
      shape.layout.page_tokens = page_tokens;
      CheckParts(shape);
    }
  }
}

TEST_P(AttentionMergeTest, UnderASlidingWindowARangeMayHaveNoKey) {
  for (const int32_t window : {1, 20, 100}) {
    PagedShape shape;
    shape.sliding_window = window;
    CheckParts(shape);
  }
}

TEST_P(AttentionMergeTest, NoKeyGivesZerosAndMergesWithoutATrace) {
  PagedShape shape;
  shape.sliding_window = 10;
  const TestContext context(ops(), 2);
  const PagedProblem problem(ops(), *context, shape, {kLength});
  const RowRange range = {0, 150, 30};
  AttentionState none;
  problem.AttendKeys(ops(), *context, {&range, 1}, {.end = 141}, none);
  for (const float value : none.out) ASSERT_EQ(value, 0.0f);
  for (const float value : none.lse) ASSERT_EQ(value, -INFINITY);
  AttentionState alone;
  problem.AttendKeys(ops(), *context, {&range, 1}, {.begin = 100}, alone);
  none.out.assign(none.out.size(), NAN);  // what stands beside -inf does not matter
  problem.AttendKeys(ops(), *context, {&range, 1}, {.begin = 100, .merge = true}, none);
  ExpectSameBits(none.out, alone.out);
  ExpectSameBits(none.lse, alone.lse);
  const AttentionState before = alone;
  problem.AttendKeys(ops(), *context, {&range, 1}, {.end = 100, .merge = true}, alone);
  ExpectNear(alone.out, before.out, 1e-6);
  ExpectNear(alone.lse, before.lse, 1e-6);
}

TEST_P(AttentionMergeTest, RangesThatHideNothingLeaveTheBits) {
  const PagedShape shape;
  const TestContext context(ops(), 2);
  const PagedProblem problem(ops(), *context, shape, {kLength});
  const RowRange range = {0, 0, kLength};
  AttentionState state;
  problem.AttendKeys(ops(), *context, {&range, 1}, {.end = kLength}, state);
  ExpectSameBits(state.out, problem.Attend(ops(), *context, {&range, 1}));
}

TEST_P(AttentionMergeTest, ChunksAndBatchesGiveTheSameBits) {
  constexpr int32_t kBegin = 37;
  PagedShape shape;
  shape.heads = 6;
  const TestContext context(ops(), 2);
  const PagedProblem problem(ops(), *context, shape, {kLength, 90});
  const AttentionState whole = InTwoParts(problem, context, kBegin, false);
  const auto row_elements = static_cast<ptrdiff_t>(problem.row_elements());
  for (const int32_t chunk : {1, 7, 64}) {
    for (int32_t first = kBegin; first < kLength; first += chunk) {
      // Beside rows of another sequence.
      const std::vector<RowRange> ranges = {{0, first, std::min(chunk, kLength - first)},
                                            {1, 60, 30}};
      AttentionState state;
      problem.AttendKeys(ops(), *context, ranges, {.begin = kBegin}, state);
      problem.AttendKeys(ops(), *context, ranges, {.end = kBegin, .merge = true}, state);
      const auto begin = whole.out.begin() + (first - kBegin) * row_elements;
      const auto count = ranges[0].count * row_elements;
      ExpectSameBits({state.out.data(), static_cast<size_t>(count)},
                     {&*begin, static_cast<size_t>(count)});
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Backends,
                         AttentionMergeTest,
                         testing::ValuesIn(kBackends),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace baton::kernels
