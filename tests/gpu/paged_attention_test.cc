// Paged attention on the device against the reference: outputs and log-sum-exps.
#include <cuda_runtime_api.h>
#include <driver_types.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "kernels/core/dtype.h"
#include "kernels/core/exec_context.h"
#include "kernels/core/float8.h"
#include "kernels/cuda/runtime/device_queue.h"
#include "kernels/kv_format/dense.h"
#include "kernels/kv_format/fp8.h"
#include "kernels/ops/params.h"
#include "kernels/reference/reference_ops.h"
#include "tests/gpu/support/gpu_test.h"
#include "tests/kernels/support/backends.h"

namespace baton::kernels::cuda {
namespace {

// Half a step of bf16 of the result, and, of what values add up to without their signs, the
// rounding of weights to bf16 (2^-8) with the scores' own errors.
constexpr double kOutTolerance = 0x1p-8;
constexpr double kWeightTolerance = 0x1p-8 + 2e-4;
constexpr double kLseTolerance = 1e-4;
// Elements of a row of q and of out behind the last head.
constexpr int64_t kQueryGap = 16;
constexpr int64_t kOutGap = 8;

// Element types of pages.
constexpr DType kPageDTypes[] = {DType::kBF16, DType::kF8E4M3};

struct Shape {
  int64_t group = 4;
  DensePageLayout layout = {.page_tokens = 32, .kv_heads = 2, .head_dim = 128};
  int32_t sliding_window = 0;

  int64_t heads() const { return group * layout.kv_heads; }
  int64_t width() const { return heads() * layout.head_dim; }
};

// A sequence of `length` tokens whose last `rows` are in the call.
struct Sequence {
  int32_t length = 0;
  int32_t rows = 1;
  int32_t key_begin = 0;
  int32_t key_end = std::numeric_limits<int32_t>::max();
};

struct State {
  std::vector<float> out;  // [rows, heads, head_dim]
  std::vector<float> lse;  // [rows, heads]
};

// Sequences in shuffled pages. Keys that no row may see hold NaN, and pages before a sequence's
// first key have ids that lead nowhere.
class Problem {
 public:
  Problem(const Shape& shape, std::vector<Sequence> sequences)
      : shape_(shape), sequences_(std::move(sequences)) {
    FillPages();
    for (const Sequence& sequence : sequences_) {
      const auto elements = static_cast<size_t>(sequence.rows * shape_.width());
      queries_.push_back(RoundedTo(RandomFloats(elements, 2.0f), DType::kBF16));
    }
    pages_device_ = std::make_unique<DeviceArray<std::byte>>(pages_);
    table_device_ = std::make_unique<DeviceArray<int32_t>>(table_);
  }

  // Attention of the rows of the first `used` sequences (0: of all); `prior` is merged in.
  State Reference(const State* prior = nullptr, size_t used = 0) const {
    return Reference(pages_, prior, used);
  }

  // The outputs if no value had a sign.
  std::vector<float> Magnitudes(const State* prior = nullptr, size_t used = 0) const {
    std::optional<State> positive;
    if (prior != nullptr) {
      positive = *prior;
      for (float& x : positive->out) x = std::fabs(x);
    }
    return Reference(WithoutSigns(), prior == nullptr ? nullptr : &*positive, used).out;
  }

  State Device(const OpTable& ops,
               const ExecContext& context,
               const State* prior = nullptr,
               size_t used = 0) const {
    const Call call = Prepare(used, table_device_->data());
    const DeviceArray<uint16_t> q = Activations(call.q);
    const DeviceArray<int32_t> positions(call.positions);
    const DeviceArray<SequenceRows> sequences(call.sequences);
    const State before = prior != nullptr ? *prior : Empty(call);
    const DeviceArray<uint16_t> out = Activations(Spread(before.out));
    const DeviceArray<float> lse(before.lse);
    PagedAttentionParams params = Params(prior != nullptr);
    params.q = q.data();
    params.q_stride = shape_.width() + kQueryGap;
    params.positions = positions.data();
    params.sequences = sequences.data();
    params.num_sequences = static_cast<int64_t>(call.sequences.size());
    params.pages.base = pages_device_->data();
    params.out = out.data();
    params.out_stride = shape_.width() + kOutGap;
    params.lse = lse.data();
    const absl::Status status = ops.paged_attention(context, params);
    EXPECT_TRUE(status.ok()) << status;
    const absl::Status done = context.queue->Wait();
    EXPECT_TRUE(done.ok()) << done;
    return {.out = Gathered(Widened(out)), .lse = lse.Get()};
  }

  // Random results of an earlier call, of bf16 outputs; the first head of a row has seen no key.
  State RandomPrior() const {
    State state = Empty(Prepare(0, table_.data()));
    state.out = RoundedTo(RandomFloats(state.out.size()), DType::kBF16);
    state.lse = RandomFloats(state.lse.size(), 2.0f);
    for (size_t i = 0; i < state.lse.size(); i += static_cast<size_t>(shape_.heads())) {
      state.lse[i] = -INFINITY;
      std::fill_n(state.out.begin() + static_cast<ptrdiff_t>(i) * shape_.layout.head_dim,
                  shape_.layout.head_dim,
                  NAN);
    }
    return state;
  }

  // Rows of the first `used` sequences.
  size_t Rows(size_t used) const {
    size_t rows = 0;
    for (size_t s = 0; s < used; ++s) rows += static_cast<size_t>(sequences_[s].rows);
    return rows;
  }

 private:
  // What params point to; page tables in the given memory.
  struct Call {
    std::vector<float> q;
    std::vector<int32_t> positions;
    std::vector<SequenceRows> sequences;
  };

  // Attention over `pages`, which is taken by value since params point to what may be written.
  State Reference(std::vector<std::byte> pages, const State* prior, size_t used) const {
    const Call call = Prepare(used, table_.data());
    State state = prior != nullptr ? *prior : Empty(call);
    const TestContext context(ReferenceOps(), 1);
    PagedAttentionParams params = Params(prior != nullptr);
    params.q = call.q.data();
    params.q_stride = shape_.width() + kQueryGap;
    params.positions = call.positions.data();
    params.sequences = call.sequences.data();
    params.num_sequences = static_cast<int64_t>(call.sequences.size());
    params.pages.base = pages.data();
    params.out = state.out.data();
    params.out_stride = shape_.width();
    params.lse = state.lse.data();
    const absl::Status status = ReferenceOps().paged_attention(*context, params);
    EXPECT_TRUE(status.ok()) << status;
    return state;
  }

  std::vector<std::byte> WithoutSigns() const {
    const DensePageLayout& layout = shape_.layout;
    const size_t element_bytes = DTypeBytes(layout.dtype);
    std::vector<std::byte> pages = pages_;
    for (std::byte* page = pages.data(); page != pages.data() + pages.size();
         page += layout.stride_bytes()) {
      for (int32_t head = 0; head < layout.kv_heads; ++head) {
        for (int32_t slot = 0; slot < layout.page_tokens; ++slot) {
          std::byte* const values = page + layout.value_offset(head, slot);
          for (size_t i = 1; i <= static_cast<size_t>(layout.head_dim); ++i) {
            values[i * element_bytes - 1] &= std::byte{0x7f};
          }
        }
      }
    }
    return pages;
  }

  void FillPages() {
    constexpr int32_t kNowhere = 1 << 28;
    const DensePageLayout& layout = shape_.layout;
    int32_t num_pages = 0;
    for (const Sequence& sequence : sequences_) {
      table_begins_.push_back(num_pages);
      num_pages += layout.pages_for(sequence.length);
    }
    table_.resize(static_cast<size_t>(num_pages));
    std::iota(table_.begin(), table_.end(), 0);
    std::mt19937 random(TestSeed());
    std::shuffle(table_.begin(), table_.end(), random);
    pages_.assign(table_.size() * layout.stride_bytes(), std::byte{0xff});
    for (size_t s = 0; s < sequences_.size(); ++s) {
      const Sequence& sequence = sequences_[s];
      for (int32_t token = sequence.key_begin; token < std::min(sequence.length, sequence.key_end);
           ++token) {
        WriteToken(s, token);
      }
      std::fill_n(
          table_.begin() + table_begins_[s],
          std::min(sequence.key_begin / layout.page_tokens, layout.pages_for(sequence.length)),
          kNowhere);
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
      WriteHead(RandomFloats(elements),
                page + layout.key_offset(head, slot),
                page + layout.key_scale_offset(head, slot));
      WriteHead(RandomFloats(elements),
                page + layout.value_offset(head, slot),
                page + layout.value_scale_offset(head, slot));
    }
  }

  void WriteHead(const std::vector<float>& x, std::byte* elements, std::byte* scale) const {
    if (shape_.layout.has_scales()) {
      const float of_head =
          EncodeFp8(x.data(), shape_.layout.head_dim, reinterpret_cast<uint8_t*>(elements));
      std::memcpy(scale, &of_head, sizeof(of_head));
      return;
    }
    const std::vector<std::byte> bits = Encode(x, DType::kBF16);
    std::copy(bits.begin(), bits.end(), elements);
  }

  Call Prepare(size_t used, const int32_t* table) const {
    Call call;
    for (size_t s = 0; s < (used == 0 ? sequences_.size() : used); ++s) {
      const Sequence& sequence = sequences_[s];
      call.sequences.push_back({.row_begin = static_cast<int32_t>(call.positions.size()),
                                .row_count = sequence.rows,
                                .page_table = table + table_begins_[s],
                                .key_begin = sequence.key_begin,
                                .key_end = sequence.key_end});
      for (int32_t row = 0; row < sequence.rows; ++row) {
        call.positions.push_back(sequence.length - sequence.rows + row);
        const auto begin = queries_[s].begin() + row * shape_.width();
        call.q.insert(call.q.end(), begin, begin + shape_.width());
        call.q.insert(call.q.end(), static_cast<size_t>(kQueryGap), NAN);
      }
    }
    return call;
  }

  State Empty(const Call& call) const {
    const size_t rows = call.positions.size();
    return {.out = std::vector<float>(rows * static_cast<size_t>(shape_.width()), NAN),
            .lse = std::vector<float>(rows * static_cast<size_t>(shape_.heads()), NAN)};
  }

  PagedAttentionParams Params(bool merge) const {
    return {.pages = {.base = nullptr, .layout = shape_.layout},
            .heads = shape_.heads(),
            .scale = 1.0f / std::sqrt(static_cast<float>(shape_.layout.head_dim)),
            .sliding_window = shape_.sliding_window,
            .merge = merge};
  }

  // Rows with a gap behind each, and the inverse, which looks that nothing was written there.
  std::vector<float> Spread(const std::vector<float>& rows) const {
    std::vector<float> spread;
    for (auto row = rows.begin(); row != rows.end(); row += shape_.width()) {
      spread.insert(spread.end(), row, row + shape_.width());
      spread.insert(spread.end(), static_cast<size_t>(kOutGap), 7.0f);
    }
    return spread;
  }
  std::vector<float> Gathered(const std::vector<float>& spread) const {
    std::vector<float> rows;
    for (auto row = spread.begin(); row != spread.end(); row += shape_.width() + kOutGap) {
      rows.insert(rows.end(), row, row + shape_.width());
      for (int64_t i = 0; i < kOutGap; ++i) EXPECT_EQ(row[shape_.width() + i], 7.0f);
    }
    return rows;
  }

  Shape shape_;
  std::vector<Sequence> sequences_;
  std::vector<std::vector<float>> queries_;  // per sequence [rows, heads, head_dim]
  std::vector<int32_t> table_;
  std::vector<int32_t> table_begins_;  // per sequence
  std::vector<std::byte> pages_;
  std::unique_ptr<DeviceArray<std::byte>> pages_device_;
  std::unique_ptr<DeviceArray<int32_t>> table_device_;
};

void ExpectNearState(const State& got, const State& want, const std::vector<float>& magnitudes) {
  ASSERT_EQ(got.out.size(), want.out.size());
  for (size_t i = 0; i < got.out.size(); ++i) {
    const double tolerance =
        kOutTolerance * std::fabs(want.out[i]) + kWeightTolerance * magnitudes[i] + 1e-6;
    ASSERT_NEAR(got.out[i], want.out[i], tolerance) << "element " << i << "; " << SeedMessage();
  }
  ASSERT_EQ(got.lse.size(), want.lse.size());
  for (size_t i = 0; i < got.lse.size(); ++i) {
    if (std::isinf(want.lse[i])) {
      ASSERT_EQ(got.lse[i], want.lse[i]) << "lse " << i;
    } else {
      ASSERT_NEAR(got.lse[i], want.lse[i], kLseTolerance * std::max(1.0f, std::fabs(want.lse[i])))
          << "lse " << i << "; " << SeedMessage();
    }
  }
}

class PagedAttentionGpuTest : public GpuTest {
 protected:
  // In pages of every element type.
  void Compare(Shape shape, const std::vector<Sequence>& sequences) const {
    for (const DType dtype : kPageDTypes) {
      shape.layout.dtype = dtype;
      SCOPED_TRACE(testing::Message()
                   << "group " << shape.group << " kv_heads " << shape.layout.kv_heads
                   << " head_dim " << shape.layout.head_dim << " page_tokens "
                   << shape.layout.page_tokens << " window " << shape.sliding_window << " "
                   << DTypeName(dtype));
      const Problem problem(shape, sequences);
      ExpectNearState(problem.Device(ops(), context()), problem.Reference(), problem.Magnitudes());
    }
  }
};

TEST_F(PagedAttentionGpuTest, DecodeRowsGiveTheReferencesResults) {
  for (const int32_t head_dim : {64, 128}) {
    Shape shape;
    shape.layout.head_dim = head_dim;
    Compare(shape, {{1}, {2}, {15}, {16}, {17}, {63}, {64}, {65}, {128}, {200}, {511}, {513}});
  }
}

TEST_F(PagedAttentionGpuTest, EveryGroupSizeGivesTheReferencesResults) {
  for (const int32_t head_dim : {64, 128}) {
    for (const int64_t group : {1, 2, 3, 4, 5, 7, 8, 9, 13, 16}) {
      Shape shape;
      shape.group = group;
      shape.layout.head_dim = head_dim;
      shape.layout.kv_heads = 3;
      Compare(shape, {{70}, {600}});
    }
  }
}

TEST_F(PagedAttentionGpuTest, EveryPageSizeGivesTheReferencesResults) {
  for (const int32_t page_tokens : {1, 5, 16, 24, 64, 100, 256}) {
    Shape shape;
    shape.layout.page_tokens = page_tokens;
    Compare(shape, {{203}, {70, 3}, {700}});
  }
}

TEST_F(PagedAttentionGpuTest, SeveralRowsOfASequenceSeeTheirOwnKeys) {
  Compare({}, {{100, 5}, {520, 9}, {3, 3}, {75, 75}});
}

TEST_F(PagedAttentionGpuTest, RowsOfManySequencesAreFound) {
  std::vector<Sequence> sequences;
  sequences.reserve(75);
  for (int32_t s = 0; s < 75; ++s) {
    sequences.push_back({.length = 4 + 9 * s % 130, .rows = s == 20 ? 4 : s * 5 % 4});
  }
  Shape shape;
  shape.layout.head_dim = 64;
  shape.layout.kv_heads = 1;
  Compare(shape, sequences);
  std::vector<Sequence> late(40, {.length = 5, .rows = 0});
  late.push_back({.length = 90, .rows = 40});
  Compare(shape, late);
}

TEST_F(PagedAttentionGpuTest, ManySplitsGiveTheReferencesResults) {
  Shape shape;
  shape.group = 2;
  shape.layout.kv_heads = 1;
  Compare(shape, {{2049}, {16384}, {17001}, {5000, 2}});
  shape.layout.head_dim = 64;
  Compare(shape, {{3000}, {20000}});
}

TEST_F(PagedAttentionGpuTest, KeysOutsideASlidingWindowAreNotSeen) {
  for (const int32_t window : {1, 2, 16, 17, 64, 100, 600, 10000}) {
    Shape shape;
    shape.sliding_window = window;
    Compare(shape, {{300, 2}, {1300}});
  }
}

TEST_F(PagedAttentionGpuTest, KeysOutsideTheRangeAreNotSeen) {
  Compare({},
          {{.length = 300, .rows = 3, .key_begin = 37},
           {.length = 300, .rows = 3, .key_begin = 64, .key_end = 161},
           {.length = 1500, .key_begin = 700},
           {.length = 1500, .rows = 2, .key_end = 1200},
           {.length = 90, .rows = 4, .key_begin = 88}});
}

TEST_F(PagedAttentionGpuTest, ARowThatSeesNoKeyGivesZeros) {
  for (const DType dtype : kPageDTypes) {
    Shape shape;
    shape.layout.dtype = dtype;
    const Problem problem(shape,
                          {{.length = 90, .rows = 2, .key_begin = 95},
                           {.length = 40, .key_end = 0},
                           {.length = 50, .key_begin = 20, .key_end = 20}});
    const State state = problem.Device(ops(), context());
    for (const float value : state.out) ASSERT_EQ(value, 0.0f);
    for (const float value : state.lse) ASSERT_EQ(value, -INFINITY);
  }
}

TEST_F(PagedAttentionGpuTest, MergesWithAttentionOverOtherKeys) {
  for (const int32_t head_dim : {64, 128}) {
    for (const int64_t group : {2, 7, 12}) {
      Shape shape;
      shape.group = group;
      shape.layout.head_dim = head_dim;
      shape.layout.dtype = group == 7 ? DType::kF8E4M3 : DType::kBF16;
      const Problem problem(shape, {{40, 2}, {700}, {2000}, {.length = 30, .key_begin = 40}});
      const State prior = problem.RandomPrior();
      ExpectNearState(problem.Device(ops(), context(), &prior),
                      problem.Reference(&prior),
                      problem.Magnitudes(&prior));
    }
  }
}

TEST_F(PagedAttentionGpuTest, ARowsBitsDoNotDependOnTheOtherRows) {
  for (const DType dtype : kPageDTypes) {
    Shape shape;
    shape.layout.dtype = dtype;
    const Problem problem(shape, {{2000}, {70, 2}, {5000}, {1}, {900, 3}});
    const State all = problem.Device(ops(), context());
    for (const size_t used : {size_t{1}, size_t{2}, size_t{3}}) {
      const State some = problem.Device(ops(), context(), nullptr, used);
      ExpectSameBits(some.out, std::span(all.out).first(some.out.size()));
      ExpectSameBits(some.lse, std::span(all.lse).first(some.lse.size()));
    }
  }
}

TEST_F(PagedAttentionGpuTest, ARowsBitsDoNotDependOnTheWorkspace) {
  for (const int64_t group : {4, 16}) {
    Shape shape;
    shape.group = group;
    shape.layout.dtype = group == 16 ? DType::kF8E4M3 : DType::kBF16;
    const Problem problem(shape, {{3000, 8}, {9000, 2}, {600, 3}, {20000}});
    const State roomy = problem.Device(ops(), context());
    // Room for the partial results of few rows.
    const auto bytes = static_cast<size_t>(32 * 2 * group * (128 + 2) * 4 + 64 * 16);
    absl::StatusOr<std::unique_ptr<DeviceQueue>> queue = DeviceQueue::Create(bytes);
    ASSERT_TRUE(queue.ok()) << queue.status();
    ExecContext tight;
    tight.queue = queue->get();
    for (int run = 0; run < 2; ++run) {
      const State state = problem.Device(ops(), tight);
      ExpectSameBits(state.out, roomy.out);
      ExpectSameBits(state.lse, roomy.lse);
    }
  }
}

// Attention to one token is its values: of every code, in every place of a head.
TEST_F(PagedAttentionGpuTest, EveryFp8CodeIsReadExactly) {
  constexpr DensePageLayout kLayout = {
      .page_tokens = 1, .kv_heads = 1, .head_dim = 128, .dtype = DType::kF8E4M3};
  std::vector<std::byte> pages(256 * kLayout.stride_bytes());
  std::vector<int32_t> table(256);
  std::vector<float> want;
  for (size_t token = 0; token < 256; ++token) {
    table[token] = static_cast<int32_t>(token);
    std::byte* page = pages.data() + token * kLayout.stride_bytes();
    for (size_t i = 0; i < 128; ++i) {
      auto code = static_cast<uint8_t>(token + i);
      code = (code & 0x7f) == 0x7f ? uint8_t{0} : code;  // no NaN
      page[kLayout.value_offset(0, 0) + i] = static_cast<std::byte>(code);
      want.push_back(F8E4M3ToF32(code) * 0.5f);
    }
    const float scale = 0.5f;
    std::memcpy(page + kLayout.value_scale_offset(0, 0), &scale, sizeof(scale));
  }
  const DeviceArray<std::byte> device_pages(pages);
  const DeviceArray<int32_t> device_table(table);
  std::vector<SequenceRows> rows;
  for (int32_t token = 0; token < 256; ++token) {
    rows.push_back({.row_begin = token, .row_count = 1, .page_table = device_table.data() + token});
  }
  const DeviceArray<SequenceRows> sequences(rows);
  const DeviceArray<int32_t> positions(std::vector<int32_t>(256));
  const DeviceArray<uint16_t> q(std::vector<uint16_t>(want.size()));
  const auto out = DeviceArray<uint16_t>::Poisoned(want.size());
  const absl::Status status =
      ops().paged_attention(context(),
                            {.q = q.data(),
                             .q_stride = 128,
                             .positions = positions.data(),
                             .sequences = sequences.data(),
                             .num_sequences = 256,
                             .pages = {.base = device_pages.data(), .layout = kLayout},
                             .heads = 1,
                             .scale = 1.0f,
                             .out = out.data(),
                             .out_stride = 128});
  ASSERT_TRUE(status.ok()) << status;
  Wait();
  EXPECT_EQ(Widened(out), want);
}

TEST_F(PagedAttentionGpuTest, CallsLeaveTheCountersAtZero) {
  const Problem problem({}, {{2000}, {70, 2}, {5000, 3}});
  problem.Device(ops(), context());
  std::vector<uint32_t> counters(DeviceQueue::kCounters, 1);
  ASSERT_EQ(cudaMemcpy(counters.data(),
                       queue().counters(),
                       counters.size() * sizeof(uint32_t),
                       cudaMemcpyDeviceToHost),
            cudaSuccess);
  EXPECT_EQ(counters, std::vector<uint32_t>(counters.size()));
}

TEST_F(PagedAttentionGpuTest, SaysWhatItCannotDo) {
  const DeviceArray<uint16_t> memory(std::vector<uint16_t>(4096));
  const DeviceArray<int32_t> positions(std::vector<int32_t>(1));
  const DeviceArray<SequenceRows> sequences(std::vector<SequenceRows>(1));
  PagedAttentionParams params = {
      .q = memory.data(),
      .q_stride = 256,
      .positions = positions.data(),
      .sequences = sequences.data(),
      .num_sequences = 1,
      .pages = {.base = reinterpret_cast<std::byte*>(memory.data()),
                .layout = {.page_tokens = 16, .kv_heads = 1, .head_dim = 128}},
      .heads = 2,
      .scale = 1.0f,
      .out = memory.data(),
      .out_stride = 256};
  EXPECT_TRUE(ops().paged_attention(context(), params).ok());
  PagedAttentionParams other = params;
  other.pages.layout.dtype = DType::kF32;
  EXPECT_TRUE(absl::IsUnimplemented(ops().paged_attention(context(), other)));
  other = params;
  other.pages.layout.head_dim = 96;
  EXPECT_TRUE(absl::IsUnimplemented(ops().paged_attention(context(), other)));
  other = params;
  other.merge = true;
  EXPECT_TRUE(absl::IsInvalidArgument(ops().paged_attention(context(), other)));
  other = params;
  other.out_stride = 255;
  EXPECT_TRUE(absl::IsInvalidArgument(ops().paged_attention(context(), other)));
  absl::StatusOr<std::unique_ptr<DeviceQueue>> queue = DeviceQueue::Create(1024);
  ASSERT_TRUE(queue.ok()) << queue.status();
  ExecContext tight;
  tight.queue = queue->get();
  EXPECT_TRUE(absl::IsResourceExhausted(ops().paged_attention(tight, params)));
  Wait();
}

}  // namespace
}  // namespace baton::kernels::cuda
