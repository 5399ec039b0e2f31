// The bits of an attention row depend on neither chunking, batch composition nor threads.
// PagedProblem hides the keys past each call's last row, so a chunk sees what it would see in a
// real step.
#include <algorithm>
#include <random>
#include <vector>

#include "kernels/core/dtype.h"
#include "kernels/core/exec_context.h"
#include "tests/kernels/support/backends.h"
#include "tests/kernels/support/paged_problem.h"

namespace baton::kernels {
namespace {

class AttentionInvarianceTest : public BackendTest {
 protected:
  // All rows of a sequence in chunks of `chunk` rows.
  std::vector<float> InChunks(const PagedProblem& problem,
                              const ExecContext& context,
                              int sequence,
                              int32_t chunk) const {
    std::vector<float> all;
    for (int32_t first = 0; first < problem.length(sequence); first += chunk) {
      const RowRange range = {sequence, first, std::min(chunk, problem.length(sequence) - first)};
      const std::vector<float> part = problem.Attend(ops(), context, {&range, 1});
      all.insert(all.end(), part.begin(), part.end());
    }
    return all;
  }

  void CheckChunks(const PagedShape& shape) const {
    const TestContext one(ops(), 1);
    const TestContext two(ops(), 2);
    const PagedProblem problem(ops(), *one, shape, {331});
    const std::vector<float> whole = InChunks(problem, *one, 0, 331);
    for (const int32_t chunk : {1, 2, 7, 8, 9, 31, 64, 257, 331}) {
      SCOPED_TRACE(testing::Message() << "chunks of " << chunk);
      ExpectSameBits(InChunks(problem, *two, 0, chunk), whole);
    }
  }
};

TEST_P(AttentionInvarianceTest, ChunksGiveTheBitsOfTheWholePrompt) { CheckChunks(PagedShape()); }

TEST_P(AttentionInvarianceTest, ChunksOfOddShapes) {
  PagedShape shape;
  shape.heads = 7;
  shape.layout = {.page_tokens = 5, .kv_heads = 1, .head_dim = 24, .dtype = DType::kF32};
  CheckChunks(shape);
}

TEST_P(AttentionInvarianceTest, ChunksOfFp8Pages) {
  PagedShape shape;
  shape.layout = {.page_tokens = 24, .kv_heads = 2, .head_dim = 40, .dtype = DType::kF8E4M3};
  CheckChunks(shape);
}

TEST_P(AttentionInvarianceTest, ChunksUnderASlidingWindow) {
  PagedShape shape;
  shape.layout.head_dim = 16;
  shape.sliding_window = 70;
  CheckChunks(shape);
}

TEST_P(AttentionInvarianceTest, AnyBatchGivesTheSameBits) {
  const TestContext one(ops(), 1);
  const TestContext two(ops(), 2);
  PagedShape shape;
  shape.layout.head_dim = 32;
  const PagedProblem problem(ops(), *one, shape, {300, 65, 1, 64, 200, 7});
  std::vector<std::vector<float>> alone;
  alone.reserve(6);
  for (int s = 0; s < 6; ++s) {
    alone.push_back(InChunks(problem, *one, s, problem.length(s)));
  }
  std::mt19937 random(TestSeed());
  const auto pick = [&](int32_t n) {
    return static_cast<int32_t>(random() % static_cast<uint32_t>(n));
  };
  for (int round = 0; round < 30; ++round) {
    std::vector<RowRange> ranges;
    std::vector<int> order = {0, 1, 2, 3, 4, 5};
    std::shuffle(order.begin(), order.end(), random);
    order.resize(1 + static_cast<size_t>(pick(6)));
    std::vector<float> want;
    for (const int s : order) {
      RowRange range = {s, pick(problem.length(s)), 1};
      if (pick(2) == 0) {
        range.count = 1 + pick(problem.length(s) - range.first);
      }
      ranges.push_back(range);
      const auto begin =
          alone[static_cast<size_t>(s)].begin() + range.first * problem.row_elements();
      want.insert(want.end(), begin, begin + range.count * problem.row_elements());
    }
    ExpectSameBits(problem.Attend(ops(), round % 2 == 0 ? *one : *two, ranges), want);
  }
}

INSTANTIATE_TEST_SUITE_P(Backends,
                         AttentionInvarianceTest,
                         testing::ValuesIn(kBackends),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace baton::kernels
