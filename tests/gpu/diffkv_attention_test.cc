// Attention over quantized pages on the device against the reference: outputs, log-sum-exps,
// probabilities and scores in the pages.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "kernels/core/exec_context.h"
#include "kernels/kv_format/diffkv.h"
#include "kernels/ops/diffkv_params.h"
#include "kernels/ops/op_table.h"
#include "kernels/reference/reference_ops.h"
#include "tests/gpu/support/gpu_test.h"
#include "tests/kernels/support/backends.h"
#include "tests/kernels/support/diffkv_problem.h"

namespace baton::kernels::cuda {
namespace {

// Of the largest output: half a step of bf16 (2^-9 of the value) and what fp16 operands add.
constexpr double kTolerance = 8e-3;
// Of a probability or of what it adds to a score; and of a log-sum-exp in nats.
constexpr double kShareTolerance = 0.02;
constexpr double kLseTolerance = 2e-3;

enum class Queries {
  kNormal,
  kOneDim,    // one element of each head is 64 times the others
  kSomeZero,  // every other head is zero
};

// How the rows of a call are attended.
struct Attention {
  bool first = true;
  bool last = true;
  bool scored = true;
  bool others = false;  // rows hold attention over other keys
  bool lse = true;      // rows have a log-sum-exp: -inf without others
  Queries queries = Queries::kNormal;
  float magnitude = 2.0f;  // of queries
};

// Everything within `tolerance` of the largest that is wanted.
void ExpectClose(std::span<const float> got, std::span<const float> want, double tolerance) {
  ASSERT_EQ(got.size(), want.size());
  double largest = 0.0;
  for (const float value : want) largest = std::max(largest, std::fabs(double{value}));
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_NEAR(got[i], want[i], tolerance * largest) << "element " << i << "; " << SeedMessage();
  }
}

// Probabilities, each within a share of itself.
void ExpectSameShares(std::span<const float> got, std::span<const float> want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_NEAR(got[i], want[i], kShareTolerance * double{want[i]} + 1e-7)
        << "token " << i << "; " << SeedMessage();
  }
}

// Sequences of one shape and their queries, and the same on the device, in one pool there.
class Batch {
 public:
  Batch(const DiffKvShape& shape, const std::vector<int32_t>& lengths) : shape_(shape) {
    const TestContext host(ReferenceOps(), 1);
    std::vector<std::byte> pool;
    for (const int32_t tokens : lengths) {
      const int32_t stored = std::max(tokens, 1);
      const DiffKvPrompt prompt(shape.geometry, stored);
      auto cache = std::make_unique<DiffKvCache>(shape, stored);
      cache->Load(ReferenceOps(), *host, prompt, MixedPolicy(stored));
      if (tokens == 0) std::fill(cache->counts.begin(), cache->counts.end(), 0);
      std::vector<int32_t> table = cache->table;
      for (int32_t& id : table) {
        id += static_cast<int32_t>(pool.size() / shape.geometry.page_bytes());
      }
      pool_begins_.push_back(pool.size());
      pool.insert(pool.end(), cache->pool.begin(), cache->pool.end());
      tables_.emplace_back(table);
      counts_.emplace_back(cache->counts);
      probabilities_.emplace_back(cache->probabilities);
      host_.push_back(std::move(cache));
    }
    pool_ = std::make_unique<DeviceArray<std::byte>>(pool);
  }

  // Runs the device on queries drawn from `seed`, the first `rows_used` rows (0: all) in one call.
  void Attend(const OpTable& ops,
              const ExecContext& context,
              uint32_t seed,
              const Attention& attention,
              size_t rows_used = 0) {
    Prepare(seed, attention);
    std::vector<DiffKvAttentionRow> rows;
    size_t scratch_floats = 0;
    for (size_t r = 0; r < host_.size(); ++r) {
      rows.push_back({.layer = {.page_table = tables_[r].data(),
                                .token_counts = counts_[r].data(),
                                .columns = host_[r]->columns},
                      .row = static_cast<int32_t>(r),
                      .position = position(r),
                      .lse = attention.lse ? lse_device_[r].data() : nullptr,
                      .probabilities = attention.scored ? probabilities_[r].data() : nullptr,
                      .probability_stride = host_[r]->max_tokens,
                      .scratch_begin = static_cast<int64_t>(scratch_floats)});
      scratch_floats += ScratchFloats(r);
    }
    const DeviceArray<DiffKvAttentionRow> rows_device(rows);
    const auto scratch = DeviceArray<float>::Poisoned(scratch_floats);
    DiffKvAttentionParams params = Params(attention);
    params.q = q_device_->data();
    params.out = out_device_->data();
    params.scratch = scratch.data();
    params.rows = rows_device.data();
    params.num_rows = static_cast<int64_t>(rows_used == 0 ? rows.size() : rows_used);
    params.pages = {.base = pool_->data(), .geometry = shape_.geometry};
    const absl::Status status = ops.diffkv_attention(context, params);
    ASSERT_TRUE(status.ok()) << status;
    const absl::Status done = context.queue->Wait();
    ASSERT_TRUE(done.ok()) << done;
  }

  // Runs the reference on the same queries and compares.
  void Check(const Attention& attention) {
    Reference(attention);
    const std::vector<std::byte> pool = pool_->Get();
    const std::vector<float> outs = Widened(*out_device_);
    for (size_t r = 0; r < host_.size(); ++r) {
      SCOPED_TRACE(absl::StrCat(Describe(shape_), " row ", r, " tokens ", host_[r]->max_tokens));
      ExpectClose(std::span(outs).subspan(r * width(), width()), out_[r], kTolerance);
      if (attention.lse) {
        CheckLse(lse_device_[r].Get(), lse_[r]);
      }
      DiffKvCache got = *host_[r];
      std::copy_n(pool.begin() + static_cast<ptrdiff_t>(pool_begins_[r]),
                  got.pool.size(),
                  got.pool.begin());
      got.probabilities = probabilities_[r].Get();
      CheckScores(got, *host_[r], attention.scored);
    }
  }

  std::vector<uint16_t> OutputBits(size_t row) const {
    const std::vector<uint16_t> all = out_device_->Get();
    const auto begin = all.begin() + static_cast<ptrdiff_t>(row * width());
    return {begin, begin + static_cast<ptrdiff_t>(width())};
  }

 private:
  int64_t heads() const { return shape_.group * shape_.geometry.kv_heads; }
  size_t width() const { return static_cast<size_t>(heads() * shape_.geometry.head_dim); }
  int32_t position(size_t r) const { return host_[r]->max_tokens - 1; }
  size_t ScratchFloats(size_t r) const {
    return static_cast<size_t>(DiffKvScratchFloats(shape_.geometry, heads(), host_[r]->max_tokens));
  }

  void Prepare(uint32_t seed, const Attention& attention) {
    q_.clear(), out_.clear(), lse_.clear();
    lse_device_.clear();
    const auto elements = static_cast<int64_t>(width());
    for (size_t r = 0; r < host_.size(); ++r) {
      const auto row_seed = seed + 100 * static_cast<uint32_t>(r);
      q_.push_back(SeededFloats(elements, row_seed, attention.magnitude));
      Shape(attention, q_.back());
      out_.push_back(SeededFloats(elements, row_seed + 1, 1.0f));
      lse_.push_back(SeededFloats(heads(), row_seed + 2, 2.0f));
      lse_.back()[0] = -INFINITY;
      if (!attention.others) std::fill(lse_.back().begin(), lse_.back().end(), -INFINITY);
      lse_device_.emplace_back(lse_.back());
    }
    q_device_ = std::make_unique<DeviceArray<uint16_t>>(Activations(Joined(q_)));
    out_device_ = std::make_unique<DeviceArray<uint16_t>>(
        attention.others ? Activations(Joined(out_))
                         : DeviceArray<uint16_t>::Poisoned(out_.size() * width()));
  }

  void Shape(const Attention& attention, std::vector<float>& q) const {
    const auto dim = static_cast<size_t>(shape_.geometry.head_dim);
    for (size_t begin = 0; begin < q.size(); begin += dim) {
      if (attention.queries == Queries::kOneDim) q[begin + 37] = 64.0f * attention.magnitude;
      if (attention.queries == Queries::kSomeZero && begin / dim % 2 == 0) {
        std::fill_n(q.begin() + static_cast<ptrdiff_t>(begin), dim, 0.0f);
      }
    }
  }

  static std::vector<float> Joined(const std::vector<std::vector<float>>& rows) {
    std::vector<float> joined;
    for (const std::vector<float>& row : rows) {
      joined.insert(joined.end(), row.begin(), row.end());
    }
    return joined;
  }

  // Without rows, pages and what they are read from.
  DiffKvAttentionParams Params(const Attention& attention) const {
    return {.q_stride = static_cast<int64_t>(width()),
            .out_stride = static_cast<int64_t>(width()),
            .pages = {},
            .heads = heads(),
            .scale = 1.0f / std::sqrt(static_cast<float>(shape_.geometry.head_dim)),
            .sliding_window = shape_.sliding_window,
            .first = attention.first,
            .last = attention.last,
            .scored = attention.scored};
  }

  void Reference(const Attention& attention) {
    const TestContext context(ReferenceOps(), 1);
    for (size_t r = 0; r < host_.size(); ++r) {
      std::vector<float> scratch(ScratchFloats(r));
      DiffKvAttentionRow row = {
          .layer = host_[r]->layer(),
          .position = position(r),
          .lse = attention.lse ? lse_[r].data() : nullptr,
          .probabilities = attention.scored ? host_[r]->probabilities.data() : nullptr,
          .probability_stride = host_[r]->max_tokens};
      DiffKvAttentionParams params = Params(attention);
      params.q = q_[r].data();
      params.out = out_[r].data();
      params.scratch = scratch.data();
      params.rows = &row;
      params.num_rows = 1;
      params.pages = host_[r]->pages();
      const absl::Status status = ReferenceOps().diffkv_attention(*context, params);
      ASSERT_TRUE(status.ok()) << status;
    }
  }

  static void CheckLse(std::span<const float> got, std::span<const float> want) {
    for (size_t head = 0; head < want.size(); ++head) {
      if (std::isinf(want[head])) {
        ASSERT_EQ(got[head], want[head]) << "head " << head;
      } else {
        ASSERT_NEAR(got[head], want[head], kLseTolerance) << "head " << head;
      }
    }
  }

  // Probabilities, and the pages: scores within the tolerance, every other byte untouched.
  void CheckScores(DiffKvCache& got, DiffKvCache& want, bool scored) const {
    for (int32_t head = 0; scored && head < shape_.geometry.kv_heads; ++head) {
      for (int32_t tier = 0; tier < kDiffKvTiers; ++tier) {
        CheckTier(got, want, head, tier);
      }
      const auto begin = static_cast<size_t>(int64_t{head} * got.max_tokens);
      const auto stored =
          static_cast<size_t>(int64_t{got.Count(head, kDiffKvHigh)} + got.Count(head, kDiffKvLow));
      ExpectSameShares(std::span(got.probabilities).subspan(begin, stored),
                       std::span(want.probabilities).subspan(begin, stored));
    }
    EXPECT_EQ(got.pool, want.pool) << "bytes other than scores changed";
  }

  // Compares scores in the pages of one tier and makes them equal.
  void CheckTier(DiffKvCache& got, DiffKvCache& want, int32_t head, int32_t tier) const {
    const DiffKvPageLayout layout = shape_.geometry.layout(tier);
    for (int32_t slot = 0; slot < got.Count(head, tier); ++slot) {
      const int32_t page = slot / layout.page_tokens();
      const int32_t in_page = slot % layout.page_tokens();
      auto* have = reinterpret_cast<float*>(got.PageData(head, tier, page) + layout.scores());
      const auto* expected =
          reinterpret_cast<const float*>(want.PageData(head, tier, page) + layout.scores());
      const int32_t token = slot + (tier == kDiffKvHigh ? 0 : got.Count(head, kDiffKvHigh));
      const double added =
          double{want.probabilities[static_cast<size_t>(int64_t{head} * got.max_tokens + token)]};
      ASSERT_NEAR(have[in_page], expected[in_page], kShareTolerance * added + 1e-6)
          << "slot " << slot;
      have[in_page] = expected[in_page];
    }
  }

  DiffKvShape shape_;
  std::vector<std::unique_ptr<DiffKvCache>> host_;
  std::vector<std::vector<float>> q_, out_, lse_;
  std::unique_ptr<DeviceArray<std::byte>> pool_;
  std::vector<size_t> pool_begins_;
  std::vector<DeviceArray<int32_t>> tables_, counts_;
  std::vector<DeviceArray<float>> probabilities_;
  std::unique_ptr<DeviceArray<uint16_t>> q_device_, out_device_;
  std::vector<DeviceArray<float>> lse_device_;
};

class DiffKvAttentionGpuTest : public GpuTest {
 protected:
  void Compare(const DiffKvShape& shape,
               const std::vector<int32_t>& lengths,
               const Attention& attention = {}) {
    Batch batch(shape, lengths);
    batch.Attend(ops(), context(), 3, attention);
    batch.Check(attention);
  }
};

constexpr DiffKvTier kTierPairs[][kDiffKvTiers] = {
    {{8, 4}, {4, 2}}, {{8, 8}, {8, 4}}, {{8, 8}, {4, 4}}, {{4, 4}, {4, 2}}, {{4, 2}, {4, 2}}};

TEST_F(DiffKvAttentionGpuTest, EveryTierGivesTheReferencesResults) {
  for (const int32_t head_dim : {64, 128}) {
    for (const auto& tiers : kTierPairs) {
      const DiffKvGeometry geometry = {
          .kv_heads = 2, .head_dim = head_dim, .tiers = {tiers[0], tiers[1]}};
      Compare({.geometry = geometry, .group = 4}, {1, 23, 24, 25, 33, 49, 65, 300});
    }
  }
}

TEST_F(DiffKvAttentionGpuTest, EveryGroupSizeGivesTheReferencesResults) {
  for (const int64_t group : {1, 2, 3, 4, 7, 8, 9, 16}) {
    Compare({.geometry = {.kv_heads = 3, .head_dim = 128}, .group = group}, {200});
  }
}

TEST_F(DiffKvAttentionGpuTest, ManySplitsGiveTheReferencesResults) {
  Compare({.geometry = {.kv_heads = 2, .head_dim = 128}, .group = 4}, {3000, 9000});
}

TEST_F(DiffKvAttentionGpuTest, SplitsMergedInTwoStepsGiveTheReferencesResults) {
  // From 24 to 32 tokens a page: heads with 8, 16 and 32 splits, and with one step's.
  const DiffKvGeometry geometry = {.kv_heads = 2, .head_dim = 64, .tiers = {{8, 8}, {8, 4}}};
  Compare({.geometry = geometry, .group = 3}, {10000, 400, 20000, 60000});
  Compare({.geometry = geometry, .group = 7}, {60000});
}

TEST_F(DiffKvAttentionGpuTest, QueriesOfAnyMagnitudeGiveTheReferencesResults) {
  for (const int64_t group : {4, 7}) {
    const DiffKvShape shape = {.geometry = {.kv_heads = 2, .head_dim = 128}, .group = group};
    for (const float magnitude : {1e-30f, 6e-5f, 16.0f}) {
      Compare(shape, {70, 700}, {.magnitude = magnitude});
    }
    // One token has it all, and errors of log-sum-exps are shares of scores near a million.
    Compare(shape, {70, 700}, {.scored = false, .lse = false, .magnitude = 65504.0f});
  }
}

TEST_F(DiffKvAttentionGpuTest, QueriesOfOneLargeDimOrNoneGiveTheReferencesResults) {
  for (const int64_t group : {4, 7}) {
    const DiffKvShape shape = {.geometry = {.kv_heads = 2, .head_dim = 128}, .group = group};
    Compare(shape, {70, 700}, {.queries = Queries::kOneDim, .magnitude = 0.5f});
    Compare(shape, {70, 700}, {.queries = Queries::kSomeZero});
  }
}

TEST_F(DiffKvAttentionGpuTest, KeysOutsideASlidingWindowAreNotSeen) {
  for (const int32_t window : {1, 2, 16, 17, 100, 10000}) {
    Compare({.group = 2, .sliding_window = window}, {300});
  }
}

TEST_F(DiffKvAttentionGpuTest, MergesWithAttentionOverOtherKeys) {
  Compare({.geometry = {.kv_heads = 2, .head_dim = 128}, .group = 4}, {40, 500}, {.others = true});
}

// More rows than a launch has room for, more splits than blocks, rows without a token among them,
// and a first one whose splits are merged in two steps.
std::vector<int32_t> ManyLengths() {
  std::vector<int32_t> lengths = {20000};
  for (int32_t i = 0; i < 300; ++i) lengths.push_back(i % 5 * 40);
  return lengths;
}

TEST_F(DiffKvAttentionGpuTest, ManyShortRowsGiveTheReferencesResults) {
  Compare({.geometry = {.kv_heads = 2, .head_dim = 64}, .group = 2}, ManyLengths());
}

TEST_F(DiffKvAttentionGpuTest, ARowsBitsDependNeitherOnTheOtherRowsNorOnTheirOrder) {
  for (const int64_t group : {4, 7}) {
    Batch batch({.geometry = {.kv_heads = 4, .head_dim = 128}, .group = group}, ManyLengths());
    constexpr Attention kUnscored = {.scored = false};
    batch.Attend(ops(), context(), 3, kUnscored, /*rows_used=*/1);
    const std::vector<uint16_t> bits = batch.OutputBits(0);
    for (int repeat = 0; repeat < 3; ++repeat) {
      batch.Attend(ops(), context(), 3, kUnscored);
      EXPECT_EQ(batch.OutputBits(0), bits);
    }
  }
}

TEST_F(DiffKvAttentionGpuTest, MoreKvHeadsThanLanesGiveTheReferencesResults) {
  Compare({.geometry = {.kv_heads = 35, .head_dim = 64}, .group = 1}, {70, 0, 200});
}

TEST_F(DiffKvAttentionGpuTest, WrongShapesAreRefused) {
  const DeviceArray<DiffKvAttentionRow> row(std::vector<DiffKvAttentionRow>(1));
  const auto pool = DeviceArray<std::byte>::Poisoned(8192);
  const auto activations = DeviceArray<uint16_t>::Poisoned(4 * 64);
  const auto scratch = DeviceArray<float>::Poisoned(64);
  const DiffKvAttentionParams good = {
      .q = activations.data(),
      .q_stride = 4 * 64,
      .out = activations.data(),
      .out_stride = 4 * 64,
      .scratch = scratch.data(),
      .rows = row.data(),
      .num_rows = 1,
      .pages = {.base = pool.data(), .geometry = {.kv_heads = 2, .head_dim = 64}},
      .heads = 4,
      .scale = 1.0f};
  std::vector<DiffKvAttentionParams> wrong(8, good);
  wrong[0].scale = -1.0f;
  wrong[1].heads = 3;
  wrong[2].pages.geometry.head_dim = 96;
  wrong[3].pages.geometry.tiers[1] = {8, 2};
  wrong[4].pages.base += 4;
  wrong[5].rows = nullptr;
  wrong[6].q_stride += 4;
  wrong[7].scratch = nullptr;
  for (const DiffKvAttentionParams& params : wrong) {
    EXPECT_EQ(ops().diffkv_attention(context(), params).code(), absl::StatusCode::kInvalidArgument);
  }
  EXPECT_TRUE(ops().diffkv_attention(context(), {}).ok()) << "no rows are nothing to do";
}

TEST_F(DiffKvAttentionGpuTest, UnscoredQueriesLeaveThePagesAlone) {
  Compare({.geometry = {.kv_heads = 2, .head_dim = 128}, .group = 7},
          {350},
          {.scored = false, .lse = false});
}

TEST_F(DiffKvAttentionGpuTest, LaterLayersOfAGroupTakeTheMaximumAndTheLastAddsIt) {
  Batch batch({.geometry = {.kv_heads = 2, .head_dim = 64}, .group = 3}, {150});
  for (const auto& attention : {Attention{.first = true, .last = false},
                                Attention{.first = false, .last = false},
                                Attention{.first = false, .last = true}}) {
    batch.Attend(ops(), context(), attention.last ? 9u : 5u, attention);
    batch.Check(attention);
  }
}

}  // namespace
}  // namespace baton::kernels::cuda
