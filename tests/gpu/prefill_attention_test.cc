// Attention of prompts' rows on the device against the reference: outputs and log-sum-exps, and
// which of the kernels takes a call.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "kernels/core/dtype.h"
#include "kernels/core/exec_context.h"
#include "kernels/cuda/cudnn/attention_plans.h"
#include "kernels/cuda/runtime/device_queue.h"
#include "kernels/kv_format/dense.h"
#include "kernels/ops/params.h"
#include "kernels/reference/reference_ops.h"
#include "tests/gpu/support/gpu_test.h"
#include "tests/kernels/support/backends.h"

namespace baton::kernels::cuda {
namespace {

// Half a step of bf16 of the result (up to 2^-8 of it), and the rounding of weights to bf16.
constexpr double kOutTolerance = 6e-3;
constexpr double kLseTolerance = 1e-3;
// Elements behind the last head of an output row, and what they hold.
constexpr int64_t kOutGap = 8;
constexpr float kUntouched = 7.0f;

struct Shape {
  int64_t group = 4;
  DensePageLayout layout = {.page_tokens = 32, .kv_heads = 2, .head_dim = 128};
  // What the keys of slots behind a sequence's last token hold, and what their values do; no row
  // may see it.
  float unused_keys = 1e4f;
  float unused_values = 1e4f;

  int64_t heads() const { return group * layout.kv_heads; }
  int64_t width() const { return heads() * layout.head_dim; }
  // Queries lie in front of the keys and values of one projection.
  int64_t q_stride() const { return width() + 2 * int64_t{layout.kv_heads} * layout.head_dim; }
};

// A sequence of `length` tokens whose last `rows` are in the call.
struct Sequence {
  int32_t length = 0;
  int32_t rows = 0;
};

// A whole prompt.
Sequence Prompt(int32_t length) { return {.length = length, .rows = length}; }

struct Result {
  std::vector<float> out;  // [rows, heads, head_dim]
  std::vector<float> lse;  // [rows, heads]
};

// Sequences in shuffled pages, packed behind each other in the call.
class Problem {
 public:
  Problem(const Shape& shape, std::vector<Sequence> sequences)
      : shape_(shape), sequences_(std::move(sequences)) {
    FillPages();
    for (const Sequence& sequence : sequences_) {
      for (int32_t row = 0; row < sequence.rows; ++row) {
        positions_.push_back(sequence.length - sequence.rows + row);
        const std::vector<float> q =
            RoundedTo(RandomFloats(static_cast<size_t>(shape_.width()), 2.0f), DType::kBF16);
        q_.insert(q_.end(), q.begin(), q.end());
        q_.insert(q_.end(), static_cast<size_t>(shape_.q_stride() - shape_.width()), NAN);
      }
    }
  }

  // What the params say that a device cannot read; callers change it.
  PagedAttentionParams Params() const {
    int32_t max_rows = 0;
    int32_t max_keys = 0;
    for (const Sequence& sequence : sequences_) {
      max_rows = std::max(max_rows, sequence.rows);
      max_keys = std::max(max_keys, sequence.length);
    }
    return {.q_stride = shape_.q_stride(),
            .num_sequences = static_cast<int64_t>(sequences_.size()),
            .pages = {.base = nullptr, .layout = shape_.layout},
            .heads = shape_.heads(),
            .scale = 1.0f / std::sqrt(static_cast<float>(shape_.layout.head_dim)),
            .rows = rows(),
            .max_sequence_rows = max_rows,
            .max_keys = max_keys,
            .whole_keys = true};
  }

  Result Reference(PagedAttentionParams params) const {
    Result result = {.out = std::vector<float>(Elements(shape_.width()), 0.0f),
                     .lse = std::vector<float>(Elements(shape_.heads()), 0.0f)};
    const std::vector<SequenceRows> sequences = Rows(table_.data());
    std::vector<std::byte> pages = pages_;
    params.q = q_.data();
    params.positions = positions_.data();
    params.sequences = sequences.data();
    params.pages.base = pages.data();
    params.out = result.out.data();
    params.out_stride = shape_.width();
    params.lse = result.lse.data();
    const TestContext context(ReferenceOps(), 1);
    const absl::Status status = ReferenceOps().paged_attention(*context, params);
    EXPECT_TRUE(status.ok()) << status;
    return result;
  }

  // `with_lse` false: lse is not asked for, and empty.
  Result Device(const OpTable& ops,
                const ExecContext& context,
                PagedAttentionParams params,
                bool with_lse = true) const {
    const DeviceArray<uint16_t> q = Activations(q_);
    const DeviceArray<std::byte> pages(pages_);
    const DeviceArray<int32_t> table(table_);
    const DeviceArray<int32_t> positions(positions_);
    const DeviceArray<SequenceRows> sequences(Rows(table.data()));
    const int64_t out_stride = shape_.width() + kOutGap;
    const DeviceArray<uint16_t> out =
        Activations(std::vector<float>(Elements(out_stride), kUntouched));
    const auto lse = DeviceArray<float>::Poisoned(Elements(shape_.heads()));
    params.q = q.data();
    params.positions = positions.data();
    params.sequences = sequences.data();
    params.pages.base = pages.data();
    params.out = out.data();
    params.out_stride = out_stride;
    params.lse = with_lse ? lse.data() : nullptr;
    const absl::Status status = ops.paged_attention(context, params);
    EXPECT_TRUE(status.ok()) << status;
    const absl::Status done = context.queue->Wait();
    EXPECT_TRUE(done.ok()) << done;
    return {.out = WithoutGaps(Widened(out)), .lse = with_lse ? lse.Get() : std::vector<float>()};
  }

 private:
  int64_t rows() const { return static_cast<int64_t>(positions_.size()); }
  size_t Elements(int64_t of_row) const { return static_cast<size_t>(rows() * of_row); }

  void FillPages() {
    const DensePageLayout& layout = shape_.layout;
    int32_t num_pages = 0;
    for (const Sequence& sequence : sequences_) {
      table_begins_.push_back(num_pages);
      num_pages += layout.pages_for(sequence.length);
    }
    table_.resize(static_cast<size_t>(num_pages));
    std::iota(table_.begin(), table_.end(), 0);
    std::shuffle(table_.begin(), table_.end(), std::mt19937(TestSeed()));
    const size_t page_elements = layout.stride_bytes() / sizeof(uint16_t);
    const auto values = static_cast<int64_t>(layout.value_offset(0, 0) / sizeof(uint16_t));
    std::vector<float> page(page_elements, shape_.unused_values);
    std::fill_n(page.begin(), values, shape_.unused_keys);
    const std::vector<std::byte> unused = Encode(page, DType::kBF16);
    for (size_t i = 0; i < table_.size(); ++i) {
      pages_.insert(pages_.end(), unused.begin(), unused.end());
    }
    for (size_t s = 0; s < sequences_.size(); ++s) {
      for (int32_t token = 0; token < sequences_[s].length; ++token) WriteToken(s, token);
    }
  }

  void WriteToken(size_t s, int32_t token) {
    const DensePageLayout& layout = shape_.layout;
    const int32_t id = table_[static_cast<size_t>(table_begins_[s]) +
                              static_cast<size_t>(token / layout.page_tokens)];
    std::byte* page = pages_.data() + static_cast<size_t>(id) * layout.stride_bytes();
    const int32_t slot = token % layout.page_tokens;
    const auto elements = static_cast<size_t>(layout.head_dim);
    for (int32_t head = 0; head < layout.kv_heads; ++head) {
      const std::vector<std::byte> key = Encode(RandomFloats(elements), DType::kBF16);
      const std::vector<std::byte> value = Encode(RandomFloats(elements), DType::kBF16);
      std::copy(key.begin(), key.end(), page + layout.key_offset(head, slot));
      std::copy(value.begin(), value.end(), page + layout.value_offset(head, slot));
    }
  }

  std::vector<SequenceRows> Rows(const int32_t* table) const {
    std::vector<SequenceRows> rows;
    int32_t row = 0;
    for (size_t s = 0; s < sequences_.size(); ++s) {
      rows.push_back({.row_begin = row,
                      .row_count = sequences_[s].rows,
                      .page_table = table + table_begins_[s]});
      row += sequences_[s].rows;
    }
    return rows;
  }

  // Looks that nothing was written behind the rows.
  std::vector<float> WithoutGaps(const std::vector<float>& spread) const {
    std::vector<float> rows;
    for (auto row = spread.begin(); row != spread.end(); row += shape_.width() + kOutGap) {
      rows.insert(rows.end(), row, row + shape_.width());
      for (int64_t i = 0; i < kOutGap; ++i) EXPECT_EQ(row[shape_.width() + i], kUntouched);
    }
    return rows;
  }

  Shape shape_;
  std::vector<Sequence> sequences_;
  std::vector<float> q_;  // [rows, q_stride]
  std::vector<int32_t> positions_;
  std::vector<int32_t> table_;
  std::vector<int32_t> table_begins_;  // per sequence
  std::vector<std::byte> pages_;
};

void ExpectNearResult(const Result& got, const Result& want) {
  ExpectNear(got.out, want.out, kOutTolerance);
  if (got.lse.empty()) return;
  ASSERT_EQ(got.lse.size(), want.lse.size());
  for (size_t i = 0; i < got.lse.size(); ++i) {
    ASSERT_NEAR(got.lse[i], want.lse[i], kLseTolerance * std::max(1.0f, std::fabs(want.lse[i])))
        << "lse " << i << "; " << SeedMessage();
  }
}

class PrefillAttentionGpuTest : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped()) return;
    const absl::StatusOr<AttentionPlans*> plans = context().queue->attention_plans();
    if (!plans.ok()) GTEST_SKIP() << plans.status();
    plans_ = *plans;
  }

  void Compare(const Shape& shape, const std::vector<Sequence>& sequences) const {
    SCOPED_TRACE(testing::Message()
                 << "group " << shape.group << " kv_heads " << shape.layout.kv_heads << " head_dim "
                 << shape.layout.head_dim << " page_tokens " << shape.layout.page_tokens);
    const Problem problem(shape, sequences);
    ExpectNearResult(problem.Device(ops(), context(), problem.Params()),
                     problem.Reference(problem.Params()));
  }
  // The kernel for decode rows takes the call, and gives the reference's results.
  void CompareLeftAlone(const Problem& problem, const PagedAttentionParams& params) const {
    ExpectNearResult(problem.Device(ops(), context(), params), problem.Reference(params));
    EXPECT_EQ(plans_->compiled(), 0);
  }

  AttentionPlans* plans_ = nullptr;
};

TEST_F(PrefillAttentionGpuTest, WholePromptsGiveTheReferencesResults) {
  for (const int32_t head_dim : {64, 128}) {
    for (const int64_t group : {1, 4, 7, 8}) {
      Shape shape;
      shape.group = group;
      shape.layout.head_dim = head_dim;
      Compare(shape, {Prompt(129), Prompt(1), Prompt(37), Prompt(600)});
    }
  }
  EXPECT_GT(plans_->compiled(), 0);
}

// A step with more prompts, or longer ones behind more keys, meets no plan that is not there yet.
TEST_F(PrefillAttentionGpuTest, PlansOfAllBatchesAndLengthsOfKeysComeWithTheFirst) {
  Compare({}, {Prompt(300)});
  const int64_t compiled = plans_->compiled();
  EXPECT_GT(compiled, 1);
  Compare({}, {{.length = 4000, .rows = 400}});
  for (const size_t prompts : {2u, 3u, 9u, 17u}) {
    Compare({}, std::vector<Sequence>(prompts, Prompt(150)));
  }
  EXPECT_EQ(plans_->compiled(), compiled);
}

TEST_F(PrefillAttentionGpuTest, ChunksSeeWhatIsThereAlready) {
  for (const int32_t head_dim : {64, 128}) {
    Shape shape;
    shape.layout.head_dim = head_dim;
    Compare(shape, {{700, 50}, {513, 17}, {300, 300}, {2000, 200}});
  }
}

TEST_F(PrefillAttentionGpuTest, EveryPageSizeGivesTheReferencesResults) {
  // Those that are no power of two, or small, are copied.
  for (const int32_t page_tokens : {16, 32, 64, 128, 256, 1, 24, 100}) {
    Shape shape;
    shape.layout.page_tokens = page_tokens;
    Compare(shape, {Prompt(203), {70, 20}, {700, 33}});
  }
}

TEST_F(PrefillAttentionGpuTest, LengthsAroundTilesGiveTheReferencesResults) {
  for (const int32_t length : {17, 63, 64, 65, 127, 128, 129, 255, 257, 511, 512, 513}) {
    Compare({}, {Prompt(length)});
  }
}

TEST_F(PrefillAttentionGpuTest, MoreSequencesThanAPlanTakesGoInSeveralRuns) {
  std::vector<Sequence> sequences;
  sequences.reserve(35);
  for (int32_t s = 0; s < 35; ++s) sequences.push_back({.length = 140 + 5 * s, .rows = 118 + s});
  Shape shape;
  shape.layout.kv_heads = 1;
  Compare(shape, sequences);
  shape.layout.page_tokens = 24;
  Compare(shape, sequences);
}

TEST_F(PrefillAttentionGpuTest, SequencesWithoutRowsArePassedOver) {
  Compare({}, {{50, 0}, Prompt(190), {70, 0}, Prompt(33), {20, 0}});
}

TEST_F(PrefillAttentionGpuTest, TheLogSumExpNeedNotBeAskedFor) {
  for (const int32_t page_tokens : {32, 24}) {
    Shape shape;
    shape.layout.page_tokens = page_tokens;
    const Problem problem(shape, {Prompt(200), {300, 40}});
    ExpectNearResult(problem.Device(ops(), context(), problem.Params(), false),
                     problem.Reference(problem.Params()));
  }
}

// Values are numbers there, as kv_write leaves them: each is multiplied by a weight of zero.
TEST_F(PrefillAttentionGpuTest, WhatAPageHoldsBehindTheSequenceDoesNotCount) {
  Shape shape;
  shape.unused_keys = NAN;
  shape.unused_values = 1e37f;
  Compare(shape, {Prompt(200), {301, 40}, Prompt(31)});
}

TEST_F(PrefillAttentionGpuTest, CopiesGoInAsManyRunsAsTheWorkspaceHasRoomFor) {
  Shape shape;
  shape.layout.page_tokens = 24;
  const Problem problem(shape, {{600, 150}, {600, 150}, {600, 150}});
  // Keys and values of one sequence take 600 KiB.
  absl::StatusOr<std::unique_ptr<DeviceQueue>> queue = DeviceQueue::Create(size_t{1} << 20);
  ASSERT_TRUE(queue.ok()) << queue.status();
  ExecContext tight;
  tight.queue = queue->get();
  ExpectNearResult(problem.Device(ops(), tight, problem.Params()),
                   problem.Reference(problem.Params()));
}

TEST_F(PrefillAttentionGpuTest, AWorkspaceTooSmallIsNamedWithWhatIsNeeded) {
  Shape shape;
  shape.layout.page_tokens = 24;
  const Problem problem(shape, {Prompt(600)});
  absl::StatusOr<std::unique_ptr<DeviceQueue>> queue = DeviceQueue::Create(size_t{512} << 10);
  ASSERT_TRUE(queue.ok()) << queue.status();
  ExecContext tight;
  tight.queue = queue->get();
  PagedAttentionParams params = problem.Params();
  const DeviceArray<uint16_t> rows =
      Activations(std::vector<float>(static_cast<size_t>(600 * shape.q_stride()), 0.0f));
  const DeviceArray<SequenceRows> sequences(std::vector<SequenceRows>(1));
  params.q = rows.data();
  params.out = rows.data();
  params.out_stride = params.q_stride;
  params.positions = reinterpret_cast<const int32_t*>(rows.data());
  params.sequences = sequences.data();
  params.pages.base = reinterpret_cast<std::byte*>(rows.data());
  const absl::Status status = ops().paged_attention(tight, params);
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
}

TEST_F(PrefillAttentionGpuTest, CallsOfUnknownRowsAreLeftToTheKernelForDecodeRows) {
  const Problem problem({}, {Prompt(140), {180, 30}});
  PagedAttentionParams params = problem.Params();
  params.whole_keys = false;
  CompareLeftAlone(problem, params);
  params = problem.Params();
  params.max_sequence_rows = 0;
  CompareLeftAlone(problem, params);
  params = problem.Params();
  params.max_keys = 0;
  CompareLeftAlone(problem, params);
}

TEST_F(PrefillAttentionGpuTest, FewRowsOfASequenceAreLeftToTheKernelForDecodeRows) {
  const Problem decode({}, {{200, 1}, {80, 16}});
  CompareLeftAlone(decode, decode.Params());
  const Problem mixed({}, {{200, 1}, {300, 1}, {100, 40}});
  CompareLeftAlone(mixed, mixed.Params());
}

TEST_F(PrefillAttentionGpuTest, ASlidingWindowIsLeftToTheKernelForDecodeRows) {
  for (const int32_t length : {90, 190}) {
    const Problem problem({}, {Prompt(length)});
    PagedAttentionParams params = problem.Params();
    params.sliding_window = 20;
    CompareLeftAlone(problem, params);
  }
}

// Up to 128 rows of a sequence: the keys are cut into splits, and there is no plan of cuDNN's.
TEST_F(PrefillAttentionGpuTest, SomeDozensOfRowsNeedNoPlan) {
  for (const int32_t head_dim : {64, 128}) {
    for (const int64_t group : {1, 2, 4, 7, 8, 16}) {
      Shape shape;
      shape.group = group;
      shape.layout.head_dim = head_dim;
      Compare(shape, {{.length = 700, .rows = 64}, Prompt(37), {.length = 530, .rows = 17}});
    }
  }
  EXPECT_EQ(plans_->compiled(), 0);
}

TEST_F(PrefillAttentionGpuTest, KeysAroundSplitsGiveTheReferencesResults) {
  for (const int32_t length : {128, 255, 256, 257, 511, 2047, 2048, 2049, 2112, 5000}) {
    Compare({}, {{.length = length, .rows = 64}, {.length = length, .rows = 128}});
  }
  EXPECT_EQ(plans_->compiled(), 0);
}

TEST_F(PrefillAttentionGpuTest, FewRowsInPagesOfAnySizeGiveTheReferencesResults) {
  for (const int32_t page_tokens : {1, 16, 24, 100, 256}) {
    Shape shape;
    shape.layout.page_tokens = page_tokens;
    shape.unused_keys = NAN;
    shape.unused_values = NAN;
    Compare(shape, {{.length = 301, .rows = 40}, {.length = 50, .rows = 0}, Prompt(31)});
  }
}

// The same sequence alone, and in front of another one.
TEST_F(PrefillAttentionGpuTest, FewRowsBitsDoNotDependOnTheSequencesBesideThem) {
  const std::vector<Sequence> sequences = {{.length = 3000, .rows = 64},
                                           {.length = 900, .rows = 30}};
  const Problem problem({}, sequences);
  const Result both = problem.Device(ops(), context(), problem.Params());
  PagedAttentionParams alone = problem.Params();
  alone.num_sequences = 1;
  alone.rows = 64;
  alone.max_keys = 3000;
  const Result first = problem.Device(ops(), context(), alone);
  const auto elements = static_cast<ptrdiff_t>(64 * Shape().width());
  EXPECT_TRUE(std::equal(first.out.begin(), first.out.begin() + elements, both.out.begin()));
}

TEST_F(PrefillAttentionGpuTest, WithoutRoomForSplitsACallIsNoCallOfFewRows) {
  const Problem problem({}, {{.length = 600, .rows = 100}});
  absl::StatusOr<std::unique_ptr<DeviceQueue>> queue = DeviceQueue::Create(size_t{1} << 20);
  ASSERT_TRUE(queue.ok()) << queue.status();
  ExecContext tight;
  tight.queue = queue->get();
  ExpectNearResult(problem.Device(ops(), tight, problem.Params()),
                   problem.Reference(problem.Params()));
}

}  // namespace
}  // namespace baton::kernels::cuda
