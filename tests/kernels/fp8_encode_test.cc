// Coding of prompts in KV format `fp8`: the bytes that kv_write leaves of the same rows.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "kernels/core/buffer.h"
#include "kernels/core/dtype.h"
#include "kernels/kv_format/dense.h"
#include "kernels/ops/op_table.h"
#include "kernels/ops/params.h"
#include "kernels/reference/reference_ops.h"
#include "tests/kernels/support/backends.h"

namespace baton::kernels {
namespace {

// A prompt's rows in shuffled unquantized pages, and shuffled fp8 pages to code it into.
class Prompt {
 public:
  Prompt(DType dtype, int32_t head_dim, int32_t tokens) : tokens_(tokens) {
    source_layout_ = {.page_tokens = 32, .kv_heads = 3, .head_dim = head_dim, .dtype = dtype};
    layout_ = {.page_tokens = 5, .kv_heads = 3, .head_dim = head_dim, .dtype = DType::kF8E4M3};
    source_table_ = Shuffled(source_layout_.pages_for(tokens));
    table_ = Shuffled(layout_.pages_for(tokens));
    const auto count = static_cast<size_t>(tokens * width());
    k_ = RoundedTo(RandomFloats(count), dtype);
    v_ = RoundedTo(RandomFloats(count, 100.0f), dtype);
    std::fill_n(v_.begin(), head_dim, 0.0f);
    source_ = Buffer(source_table_.size() * source_layout_.stride_bytes());
    WriteRows(source_layout_, source_table_, 0, source_);
  }

  // What the reference's kv_write makes of the rows from `first` on.
  std::vector<std::byte> Want(int32_t first) const {
    Buffer pages = Poisoned();
    WriteRows(layout_, table_, first, pages);
    return {pages.bytes().begin(), pages.bytes().end()};
  }

  std::vector<std::byte> Got(const OpTable& ops, int threads, int32_t first) {
    Buffer pages = Poisoned();
    const TestContext context(ops, threads);
    const absl::Status status = ops.fp8_encode(*context,
                                               {.source = {source_.data(), source_layout_},
                                                .source_table = source_table_.data(),
                                                .first_token = first,
                                                .tokens = tokens_,
                                                .page_table = table_.data(),
                                                .pages = {pages.data(), layout_}});
    EXPECT_TRUE(status.ok()) << status;
    return {pages.bytes().begin(), pages.bytes().end()};
  }

 private:
  int64_t width() const { return int64_t{layout_.kv_heads} * layout_.head_dim; }

  static std::vector<int32_t> Shuffled(int32_t pages) {
    std::vector<int32_t> table(static_cast<size_t>(pages));
    std::iota(table.begin(), table.end(), 0);
    std::mt19937 random(TestSeed());
    std::shuffle(table.begin(), table.end(), random);
    return table;
  }

  Buffer Poisoned() const {
    Buffer pages(table_.size() * layout_.stride_bytes());
    std::fill_n(pages.data(), pages.size(), std::byte{0xaa});
    return pages;
  }

  void WriteRows(const DensePageLayout& layout,
                 const std::vector<int32_t>& table,
                 int32_t first,
                 Buffer& pages) const {
    std::vector<int32_t> positions(static_cast<size_t>(tokens_ - first));
    std::iota(positions.begin(), positions.end(), first);
    const SequenceRows rows = {
        .row_begin = 0, .row_count = tokens_ - first, .page_table = table.data()};
    const TestContext context(ReferenceOps(), 1);
    const absl::Status status =
        ReferenceOps().kv_write(*context,
                                {.k = k_.data() + first * width(),
                                 .k_stride = width(),
                                 .v = v_.data() + first * width(),
                                 .v_stride = width(),
                                 .positions = positions.data(),
                                 .sequences = &rows,
                                 .num_sequences = 1,
                                 .pages = {.base = pages.data(), .layout = layout}});
    EXPECT_TRUE(status.ok()) << status;
  }

  int32_t tokens_;
  DensePageLayout source_layout_;
  DensePageLayout layout_;
  std::vector<int32_t> source_table_;
  std::vector<int32_t> table_;
  std::vector<float> k_;
  std::vector<float> v_;
  Buffer source_;
};

class Fp8EncodePagesTest : public BackendTest {};

TEST_P(Fp8EncodePagesTest, TheBytesAreThoseOfWrittenRows) {
  SCOPED_TRACE(SeedMessage());
  for (const DType dtype : {DType::kBF16, DType::kF32}) {
    for (const auto& [head_dim, tokens] :
         {std::pair{3, 7}, std::pair{24, 40}, std::pair{64, 300}, std::pair{128, 131}}) {
      Prompt prompt(dtype, head_dim, tokens);
      for (const int threads : {1, 3}) {
        EXPECT_EQ(prompt.Got(ops(), threads, 0), prompt.Want(0)) << head_dim;
      }
    }
  }
}

// The slots of tokens before the first stay, and so do those behind the last where the page was
// begun before.
TEST_P(Fp8EncodePagesTest, TokensBeforeTheFirstStayAsTheyAre) {
  SCOPED_TRACE(SeedMessage());
  Prompt prompt(DType::kBF16, 64, 78);
  for (const int32_t first : {1, 34, 70, 75, 76, 77}) {
    EXPECT_EQ(prompt.Got(ops(), 2, first), prompt.Want(first)) << first;
  }
  EXPECT_EQ(prompt.Got(ops(), 1, 78),
            std::vector<std::byte>(prompt.Want(0).size(), std::byte{0xaa}))
      << "no token";
}

INSTANTIATE_TEST_SUITE_P(Backends,
                         Fp8EncodePagesTest,
                         testing::ValuesIn(kBackends),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace baton::kernels
