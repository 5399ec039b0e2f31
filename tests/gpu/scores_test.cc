// Scores of prompt tokens on the device against the reference: attention probabilities, and their
// sums to the bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

#include "kernels/core/dtype.h"
#include "kernels/core/exec_context.h"
#include "kernels/cuda/runtime/device_queue.h"
#include "kernels/kv_format/dense.h"
#include "kernels/ops/diffkv_params.h"
#include "kernels/ops/op_table.h"
#include "kernels/ops/params.h"
#include "kernels/reference/reference_ops.h"
#include "tests/gpu/support/gpu_test.h"
#include "tests/kernels/support/backends.h"

namespace baton::kernels::cuda {
namespace {

// Of a probability: what scores to fp32 and 2^x make of it. Operands are the same bf16.
constexpr double kShareTolerance = 2e-3;
constexpr double kLeastProbability = 1e-7;
// Elements of a row of q behind the last head, and probabilities behind a row's last key.
constexpr int64_t kQueryGap = 8;
constexpr int64_t kKeyGap = 3;

struct Shape {
  int32_t rows = 5;  // the last of the sequence
  int32_t tokens = 300;
  int64_t group = 4;
  DensePageLayout layout = {.page_tokens = 32, .kv_heads = 2, .head_dim = 128};
  int32_t sliding_window = 0;
  int32_t key_begin = 0;
  int64_t key_gap = kKeyGap;

  int64_t heads() const { return group * layout.kv_heads; }
  int64_t width() const { return heads() * layout.head_dim; }
  int64_t stride() const { return tokens - key_begin + key_gap; }
};

std::string Describe(const Shape& shape) {
  return absl::StrCat("rows ",
                      shape.rows,
                      " tokens ",
                      shape.tokens,
                      " group ",
                      shape.group,
                      " head_dim ",
                      shape.layout.head_dim,
                      " page_tokens ",
                      shape.layout.page_tokens,
                      " window ",
                      shape.sliding_window,
                      " key_begin ",
                      shape.key_begin);
}

// One sequence in shuffled pages with the queries of its last rows. What lies behind its last token
// is NaN, and on the device pages before key_begin have ids that lead nowhere.
class Problem {
 public:
  explicit Problem(const Shape& shape) : shape_(shape) {
    FillPages();
    positions_.resize(static_cast<size_t>(shape.rows));
    std::iota(positions_.begin(), positions_.end(), shape.tokens - shape.rows);
    const auto elements = static_cast<size_t>(shape.rows * shape.width());
    q_ = RoundedTo(RandomFloats(elements, 2.0f), DType::kBF16);
    q_device_ = std::make_unique<DeviceArray<uint16_t>>(Activations(Spread(q_)));
    pages_device_ = std::make_unique<DeviceArray<std::byte>>(pages_);
    positions_device_ = std::make_unique<DeviceArray<int32_t>>(positions_);
    std::vector<int32_t> table = table_;
    std::fill_n(table.begin(), shape.key_begin / shape.layout.page_tokens, 1 << 28);
    table_device_ = std::make_unique<DeviceArray<int32_t>>(table);
    if (shape.key_begin > 0) FindLse();
  }

  // Uses the log-sum-exps over all keys from now on.
  void FindLse() {
    const TestContext context(ReferenceOps(), 1);
    lse_.resize(static_cast<size_t>(shape_.rows * shape_.heads()));
    std::vector<float> out(q_.size());
    const SequenceRows sequence = {.row_count = shape_.rows, .page_table = table_.data()};
    const absl::Status status =
        ReferenceOps().paged_attention(*context,
                                       {.q = q_.data(),
                                        .q_stride = shape_.width(),
                                        .positions = positions_.data(),
                                        .sequences = &sequence,
                                        .num_sequences = 1,
                                        .pages = {.base = pages_.data(), .layout = shape_.layout},
                                        .heads = shape_.heads(),
                                        .scale = scale(),
                                        .sliding_window = shape_.sliding_window,
                                        .out = out.data(),
                                        .out_stride = shape_.width(),
                                        .lse = lse_.data()});
    ASSERT_TRUE(status.ok()) << status;
    lse_device_ = std::make_unique<DeviceArray<float>>(lse_);
  }

  // Probabilities [rows][kv_heads][stride]; combined with `prior`.
  std::vector<float> Reference(const std::vector<float>* prior = nullptr) {
    const TestContext context(ReferenceOps(), 1);
    std::vector<float> probabilities = prior != nullptr ? *prior : std::vector<float>(Floats());
    AttentionProbabilitiesParams params = Params(prior != nullptr);
    params.q = q_.data();
    params.q_stride = shape_.width();
    params.positions = positions_.data();
    params.page_table = table_.data();
    params.lse = lse_.empty() ? nullptr : lse_.data();
    params.pages.base = pages_.data();
    params.probabilities = probabilities.data();
    const absl::Status status = ReferenceOps().attention_probabilities(*context, params);
    EXPECT_TRUE(status.ok()) << status;
    return probabilities;
  }

  // Of rows [row_begin, row_end) alone.
  std::vector<float> Device(const OpTable& ops,
                            const ExecContext& context,
                            const std::vector<float>* prior = nullptr,
                            std::optional<std::pair<int32_t, int32_t>> some = std::nullopt) const {
    const auto [begin, end] = some.value_or(std::pair(0, shape_.rows));
    const auto row_floats = static_cast<size_t>(shape_.layout.kv_heads * shape_.stride());
    const DeviceArray<float> probabilities =
        prior != nullptr
            ? DeviceArray<float>(*prior)
            : DeviceArray<float>::Poisoned(static_cast<size_t>(end - begin) * row_floats);
    AttentionProbabilitiesParams params = Params(prior != nullptr);
    params.q_stride = shape_.width() + kQueryGap;
    params.q = q_device_->data() + begin * params.q_stride;
    params.positions = positions_device_->data() + begin;
    params.rows = end - begin;
    params.page_table = table_device_->data();
    params.lse = lse_device_ == nullptr ? nullptr : lse_device_->data() + begin * shape_.heads();
    params.pages.base = pages_device_->data();
    params.probabilities = probabilities.data();
    const absl::Status status = ops.attention_probabilities(context, params);
    EXPECT_TRUE(status.ok()) << status;
    const absl::Status done = context.queue->Wait();
    EXPECT_TRUE(done.ok()) << done;
    return probabilities.Get();
  }

  size_t Floats() const {
    return static_cast<size_t>(int64_t{shape_.rows} * shape_.layout.kv_heads * shape_.stride());
  }

 private:
  float scale() const { return 1.0f / std::sqrt(static_cast<float>(shape_.layout.head_dim)); }

  void FillPages() {
    const DensePageLayout& layout = shape_.layout;
    table_.resize(static_cast<size_t>(layout.pages_for(shape_.tokens)));
    std::iota(table_.begin(), table_.end(), 0);
    std::mt19937 random(TestSeed());
    std::shuffle(table_.begin(), table_.end(), random);
    pages_.assign(table_.size() * layout.stride_bytes(), std::byte{0xff});
    const auto elements = static_cast<size_t>(layout.head_dim);
    for (int32_t token = 0; token < shape_.tokens; ++token) {
      const auto page = static_cast<size_t>(token / layout.page_tokens);
      std::byte* base = pages_.data() + static_cast<size_t>(table_[page]) * layout.stride_bytes();
      for (int32_t head = 0; head < layout.kv_heads; ++head) {
        const std::vector<std::byte> key = Encode(RandomFloats(elements), DType::kBF16);
        const int32_t slot = token % layout.page_tokens;
        std::copy(key.begin(), key.end(), base + layout.key_offset(head, slot));
        std::fill_n(base + layout.value_offset(head, slot), key.size(), std::byte{0});
      }
    }
  }

  // Rows with NaN behind each.
  std::vector<float> Spread(const std::vector<float>& rows) const {
    std::vector<float> spread;
    for (auto row = rows.begin(); row != rows.end(); row += shape_.width()) {
      spread.insert(spread.end(), row, row + shape_.width());
      spread.insert(spread.end(), static_cast<size_t>(kQueryGap), NAN);
    }
    return spread;
  }

  AttentionProbabilitiesParams Params(bool combine) const {
    return {.rows = shape_.rows,
            .key_begin = shape_.key_begin,
            .pages = {.base = nullptr, .layout = shape_.layout},
            .heads = shape_.heads(),
            .scale = scale(),
            .sliding_window = shape_.sliding_window,
            .combine = combine,
            .probability_stride = shape_.stride()};
  }

  Shape shape_;
  std::vector<int32_t> positions_;
  std::vector<float> q_;  // without gaps
  std::vector<std::byte> pages_;
  std::vector<int32_t> table_;
  std::vector<float> lse_;  // empty: none is given
  std::unique_ptr<DeviceArray<uint16_t>> q_device_;
  std::unique_ptr<DeviceArray<std::byte>> pages_device_;
  std::unique_ptr<DeviceArray<int32_t>> positions_device_;
  std::unique_ptr<DeviceArray<int32_t>> table_device_;
  std::unique_ptr<DeviceArray<float>> lse_device_;
};

// Each within a share of itself, and zero where zero is wanted.
void ExpectSameShares(std::span<const float> got, std::span<const float> want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    if (want[i] == 0.0f) {
      ASSERT_EQ(got[i], 0.0f) << "element " << i << "; " << SeedMessage();
    } else {
      ASSERT_NEAR(got[i], want[i], kShareTolerance * double{want[i]} + kLeastProbability)
          << "element " << i << "; " << SeedMessage();
    }
  }
}

class AttentionProbabilitiesGpuTest : public GpuTest {
 protected:
  void Compare(const Shape& shape) {
    SCOPED_TRACE(Describe(shape));
    Problem problem(shape);
    ExpectSameShares(problem.Device(ops(), context()), problem.Reference());
  }
};
class AccumulateScoresGpuTest : public GpuTest {};

TEST_F(AttentionProbabilitiesGpuTest, GivesTheReferencesProbabilities) {
  for (const int64_t group : {1, 2, 4, 7, 8, 16}) {
    for (const int32_t head_dim : {64, 128}) {
      Shape shape = {.group = group};
      shape.layout.head_dim = head_dim;
      Compare(shape);
    }
  }
}

TEST_F(AttentionProbabilitiesGpuTest, ServesAnyNumberOfRowsAndKeys) {
  for (const auto& [rows, tokens] : std::vector<std::pair<int32_t, int32_t>>{{1, 1},
                                                                             {1, 31},
                                                                             {1, 700},
                                                                             {5, 33},
                                                                             {8, 128},
                                                                             {9, 129},
                                                                             {37, 37},
                                                                             {64, 64},
                                                                             {64, 385},
                                                                             {65, 200},
                                                                             {100, 130}}) {
    Compare({.rows = rows, .tokens = tokens, .group = 2});
  }
}

TEST_F(AttentionProbabilitiesGpuTest, FindsKeysInPagesOfAnySize) {
  for (const int32_t page_tokens : {1, 7, 16, 32, 64}) {
    Shape shape = {.rows = 20, .tokens = 210, .group = 2};
    shape.layout.page_tokens = page_tokens;
    shape.layout.kv_heads = 3;
    Compare(shape);
  }
}

TEST_F(AttentionProbabilitiesGpuTest, KeysOutsideTheSlidingWindowGetNothing) {
  for (const int32_t window : {1, 2, 31, 64, 130, 10000}) {
    Compare({.rows = 70, .tokens = 333, .group = 2, .sliding_window = window});
  }
}

TEST_F(AttentionProbabilitiesGpuTest, TakesLogSumExpsOverKeysThatAreNotThere) {
  for (const int32_t key_begin : {1, 31, 32, 150, 299}) {
    Compare({.rows = 1, .tokens = 300, .key_begin = key_begin});
  }
  Compare({.rows = 64, .tokens = 450, .group = 7, .key_begin = 130});
  Compare({.rows = 30, .tokens = 400, .group = 2, .sliding_window = 50, .key_begin = 340});
  Problem all({.rows = 66, .tokens = 290});
  all.FindLse();
  ExpectSameShares(all.Device(ops(), context()), all.Reference());
}

TEST_F(AttentionProbabilitiesGpuTest, CombinesWithWhatIsThere) {
  for (const int32_t window : {0, 40}) {
    Problem problem({.rows = 20, .tokens = 170, .group = 3, .sliding_window = window});
    std::vector<float> prior = RandomFloats(problem.Floats(), 0.02f);
    for (float& value : prior) value = std::fabs(value);
    ExpectSameShares(problem.Device(ops(), context(), &prior), problem.Reference(&prior));
  }
}

TEST_F(AttentionProbabilitiesGpuTest, ARowsBitsDoNotDependOnTheOtherRows) {
  for (const bool lse : {false, true}) {
    const Shape shape = {.rows = 100, .tokens = 400, .sliding_window = 290};
    Problem problem(shape);
    if (lse) problem.FindLse();
    const std::vector<float> all = problem.Device(ops(), context());
    const auto row_floats = static_cast<size_t>(shape.layout.kv_heads * shape.stride());
    for (const auto& [begin, end] :
         std::vector<std::pair<int32_t, int32_t>>{{0, 1}, {3, 14}, {61, 100}, {99, 100}}) {
      const std::vector<float> some =
          problem.Device(ops(), context(), nullptr, std::pair(begin, end));
      ExpectSameBits(some,
                     std::span(all).subspan(static_cast<size_t>(begin) * row_floats, some.size()));
    }
  }
}

TEST_F(AttentionProbabilitiesGpuTest, ARowsBitsDoNotDependOnTheWorkspace) {
  const Shape shape = {.rows = 70, .tokens = 300};
  const Problem problem(shape);
  const std::vector<float> roomy = problem.Device(ops(), context());
  const int64_t splits = (shape.stride() + 127) / 128;
  for (const int64_t rows : {3, 12, 66}) {
    const auto bytes = static_cast<size_t>(rows * shape.heads() * (8 * splits + 4));
    absl::StatusOr<std::unique_ptr<DeviceQueue>> queue = DeviceQueue::Create(bytes);
    ASSERT_TRUE(queue.ok()) << queue.status();
    ExecContext tight;
    tight.queue = queue->get();
    ExpectSameBits(problem.Device(ops(), tight), roomy);
  }
}

TEST_F(AttentionProbabilitiesGpuTest, SaysWhatItCannotDo) {
  const auto memory = DeviceArray<uint16_t>::Poisoned(8192);
  const DeviceArray<int32_t> zeros(std::vector<int32_t>(1));
  const auto out = DeviceArray<float>::Poisoned(4);
  const AttentionProbabilitiesParams params = {
      .q = memory.data(),
      .q_stride = 256,
      .positions = zeros.data(),
      .rows = 1,
      .page_table = zeros.data(),
      .pages = {.base = reinterpret_cast<std::byte*>(memory.data()),
                .layout = {.page_tokens = 16, .kv_heads = 1, .head_dim = 128}},
      .heads = 2,
      .scale = 1.0f,
      .probabilities = out.data(),
      .probability_stride = 4};
  EXPECT_TRUE(ops().attention_probabilities(context(), params).ok());
  EXPECT_TRUE(ops().attention_probabilities(context(), AttentionProbabilitiesParams{}).ok());
  AttentionProbabilitiesParams other = params;
  other.pages.layout.dtype = DType::kF8E4M3;
  EXPECT_TRUE(absl::IsUnimplemented(ops().attention_probabilities(context(), other)));
  other = params;
  other.pages.layout.head_dim = 96;
  EXPECT_TRUE(absl::IsUnimplemented(ops().attention_probabilities(context(), other)));
  other = params;
  other.q_stride = 255;
  EXPECT_TRUE(absl::IsInvalidArgument(ops().attention_probabilities(context(), other)));
  other = params;
  other.probability_stride = 0;
  EXPECT_TRUE(absl::IsInvalidArgument(ops().attention_probabilities(context(), other)));
  absl::StatusOr<std::unique_ptr<DeviceQueue>> queue = DeviceQueue::Create(8);
  ASSERT_TRUE(queue.ok()) << queue.status();
  ExecContext tight;
  tight.queue = queue->get();
  EXPECT_TRUE(absl::IsResourceExhausted(ops().attention_probabilities(tight, params)));
  Wait();
}

// Sums of rows whose positions are in no order.
struct Sums {
  int32_t rows = 0;
  int32_t tokens = 0;
  int32_t first_token = 0;
  bool own = true;
};

TEST_F(AccumulateScoresGpuTest, AddsRowsInOrderToTheBit) {
  constexpr int64_t kKvHeads = 3;
  for (const Sums& sums : std::vector<Sums>{{.rows = 1, .tokens = 1},
                                            {.rows = 1, .tokens = 1, .own = false},
                                            {.rows = 5, .tokens = 127, .first_token = 40},
                                            {.rows = 8, .tokens = 128, .own = false},
                                            {.rows = 64, .tokens = 700},
                                            {.rows = 64, .tokens = 129, .first_token = 1000},
                                            {.rows = 100, .tokens = 301, .own = false}}) {
    SCOPED_TRACE(absl::StrCat("rows ", sums.rows, " tokens ", sums.tokens));
    const int64_t stride = sums.tokens + 1;
    const int64_t score_stride = sums.tokens + 5;
    std::mt19937 random(TestSeed());
    std::vector<int32_t> positions(static_cast<size_t>(sums.rows));
    for (int32_t& position : positions) {
      position =
          sums.first_token + std::uniform_int_distribution<int32_t>(0, sums.tokens - 1)(random);
    }
    const std::vector<float> probabilities =
        RandomFloats(static_cast<size_t>(sums.rows * kKvHeads * stride));
    std::vector<float> want = RandomFloats(static_cast<size_t>(kKvHeads * score_stride));
    const DeviceArray<float> scores(want);
    const DeviceArray<float> probabilities_device(probabilities);
    const DeviceArray<int32_t> positions_device(positions);
    AccumulateScoresParams params = {.probabilities = probabilities_device.data(),
                                     .probability_stride = stride,
                                     .positions = positions_device.data(),
                                     .rows = sums.rows,
                                     .first_token = sums.first_token,
                                     .kv_heads = kKvHeads,
                                     .own = sums.own,
                                     .scores = scores.data(),
                                     .score_stride = score_stride};
    ASSERT_TRUE(ops().accumulate_scores(context(), params).ok());
    Wait();
    params.probabilities = probabilities.data();
    params.positions = positions.data();
    params.scores = want.data();
    const TestContext host(ReferenceOps(), 1);
    ASSERT_TRUE(ReferenceOps().accumulate_scores(*host, params).ok());
    ExpectSameBits(scores.Get(), want);
  }
}

TEST_F(AccumulateScoresGpuTest, SaysWhatItCannotDo) {
  EXPECT_TRUE(ops().accumulate_scores(context(), AccumulateScoresParams{}).ok());
  EXPECT_TRUE(
      absl::IsInvalidArgument(ops().accumulate_scores(context(), {.rows = 1, .kv_heads = 1})));
  EXPECT_TRUE(absl::IsInvalidArgument(ops().accumulate_scores(context(), {.rows = -1})));
}

}  // namespace
}  // namespace baton::kernels::cuda
