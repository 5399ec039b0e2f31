// Ops that move elements: embed, kv_write, gather_rows and copy_pages, exact on every back end.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <numeric>
#include <vector>

#include "kernels/core/buffer.h"
#include "kernels/core/dtype.h"
#include "kernels/core/half.h"
#include "kernels/kv_format/dense.h"
#include "kernels/ops/params.h"
#include "tests/kernels/support/backends.h"

namespace baton::kernels {
namespace {

class MovementTest : public BackendTest {};

TEST_P(MovementTest, EmbedWidensEveryBF16Exactly) {
  std::vector<uint16_t> table(65536);
  std::iota(table.begin(), table.end(), uint16_t{0});
  const std::vector<int32_t> ids = {63, 0, 17, 17};
  constexpr int64_t kDim = 1024;
  const TestContext context(ops(), 2);
  std::vector<float> out(ids.size() * kDim);
  ASSERT_TRUE(ops()
                  .embed(*context,
                         {.table = reinterpret_cast<const std::byte*>(table.data()),
                          .dtype = DType::kBF16,
                          .vocab = 64,
                          .dim = kDim,
                          .token_ids = ids.data(),
                          .rows = static_cast<int64_t>(ids.size()),
                          .out = out.data()})
                  .ok());
  std::vector<float> want;
  for (const int32_t id : ids) {
    for (int64_t i = 0; i < kDim; ++i) {
      want.push_back(BF16ToF32(static_cast<uint16_t>(id * kDim + i)));
    }
  }
  EXPECT_EQ(std::memcmp(out.data(), want.data(), want.size() * sizeof(float)), 0);
}

TEST_P(MovementTest, EmbedCopiesF32AndOddWidths) {
  const std::vector<float> table = RandomFloats(5 * 19);
  const std::vector<int32_t> ids = {4, 1};
  const TestContext context(ops(), 1);
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const std::vector<std::byte> bytes = Encode(table, dtype);
    const std::vector<float> rounded = RoundedTo(table, dtype);
    std::vector<float> out(2 * 19);
    ASSERT_TRUE(ops()
                    .embed(*context,
                           {.table = bytes.data(),
                            .dtype = dtype,
                            .vocab = 5,
                            .dim = 19,
                            .token_ids = ids.data(),
                            .rows = 2,
                            .out = out.data()})
                    .ok());
    ExpectSameBits(std::span(out).first(19), std::span(rounded).subspan(4 * 19, 19));
    ExpectSameBits(std::span(out).last(19), std::span(rounded).subspan(19, 19));
  }
}

// Rows at positions 5..7 of a sequence whose pages hold 4 tokens.
void CheckKvWrite(const OpTable& ops, DType dtype, int32_t head_dim) {
  const TestContext context(ops, 2);
  const DensePageLayout layout = {
      .page_tokens = 4, .kv_heads = 2, .head_dim = head_dim, .dtype = dtype};
  Buffer pages(3 * layout.stride_bytes());
  const int32_t page_table[] = {2, 0};
  const std::vector<int32_t> positions = {5, 6, 7};
  const int64_t width = 2 * head_dim;
  std::vector<float> k = RandomFloats(static_cast<size_t>(3 * width));
  const std::vector<float> v = RandomFloats(static_cast<size_t>(3 * width));
  k[0] = std::bit_cast<float>(0x3f818000u);  // a tie
  k[1] = INFINITY;
  k[2] = std::bit_cast<float>(0x7f800001u);  // a signaling NaN
  k[3] = -0.0f;
  k[4] = std::bit_cast<float>(0xff7fffffu);  // rounds to -infinity
  const SequenceRows sequence = {.row_begin = 0, .row_count = 3, .page_table = page_table};
  ASSERT_TRUE(ops.kv_write(*context,
                           {.k = k.data(),
                            .k_stride = width,
                            .v = v.data(),
                            .v_stride = width,
                            .positions = positions.data(),
                            .sequences = &sequence,
                            .num_sequences = 1,
                            .pages = {.base = pages.data(), .layout = layout}})
                  .ok());
  Buffer want(pages.size());
  for (size_t row = 0; row < 3; ++row) {
    for (int32_t head = 0; head < 2; ++head) {
      const auto offset = static_cast<size_t>(static_cast<int64_t>(row) * width + head * head_dim);
      const auto slot = static_cast<int32_t>(row) + 1;
      const auto n = static_cast<size_t>(head_dim);
      const std::vector<std::byte> key = Encode(std::span(k).subspan(offset, n), dtype);
      const std::vector<std::byte> value = Encode(std::span(v).subspan(offset, n), dtype);
      std::copy(key.begin(), key.end(), want.data() + layout.key_offset(head, slot));
      std::copy(value.begin(), value.end(), want.data() + layout.value_offset(head, slot));
    }
  }
  EXPECT_EQ(std::memcmp(pages.data(), want.data(), want.size()), 0)
      << DTypeName(dtype) << " head_dim " << head_dim;
}

TEST_P(MovementTest, KvWriteRoundsIntoTheRightSlots) {
  for (const int32_t head_dim : {5, 8, 16, 24, 64}) {
    CheckKvWrite(ops(), DType::kBF16, head_dim);
    CheckKvWrite(ops(), DType::kF32, head_dim);
  }
}

// Rows [first, first + count) of a sequence whose pages, of 4 tokens, are 1 and 0.
void WriteTokens(const OpTable& ops,
                 const DensePageLayout& layout,
                 int32_t first,
                 int32_t count,
                 Buffer& pages) {
  const TestContext context(ops, 2);
  const int32_t page_table[] = {1, 0};
  std::vector<int32_t> positions(static_cast<size_t>(count));
  std::iota(positions.begin(), positions.end(), first);
  const int64_t width = int64_t{layout.kv_heads} * layout.head_dim;
  const std::vector<float> rows(static_cast<size_t>(count * width), 1.0f);
  const SequenceRows sequence = {.row_begin = 0, .row_count = count, .page_table = page_table};
  ASSERT_TRUE(ops.kv_write(*context,
                           {.k = rows.data(),
                            .k_stride = width,
                            .v = rows.data(),
                            .v_stride = width,
                            .positions = positions.data(),
                            .rows = count,
                            .sequences = &sequence,
                            .num_sequences = 1,
                            .pages = {.base = pages.data(), .layout = layout}})
                  .ok());
}

// Of head 1 at `slot` of `page`: one byte of its key, one of its value, and where there are scales
// one of each.
std::vector<int> BytesAt(const DensePageLayout& layout, const Buffer& pages, int page, int slot) {
  const std::byte* base = pages.data() + static_cast<size_t>(page) * layout.stride_bytes();
  std::vector<int> bytes = {static_cast<int>(base[layout.key_offset(1, slot)]),
                            static_cast<int>(base[layout.value_offset(1, slot)])};
  if (layout.has_scales()) {
    bytes.push_back(static_cast<int>(base[layout.key_scale_offset(1, slot)]));
    bytes.push_back(static_cast<int>(base[layout.value_scale_offset(1, slot)]));
  }
  return bytes;
}

TEST_P(MovementTest, KvWriteLeavesZerosInThePageThatItBegins) {
  constexpr auto kOld = std::byte{0xee};
  for (const DType dtype : {DType::kBF16, DType::kF32, DType::kF8E4M3}) {
    SCOPED_TRACE(DTypeName(dtype));
    const DensePageLayout layout = {.page_tokens = 4, .kv_heads = 2, .head_dim = 8, .dtype = dtype};
    const size_t fields = dtype == DType::kF8E4M3 ? 4 : 2;
    const std::vector<int> old(fields, static_cast<int>(kOld));
    const std::vector<int> zeros(fields, 0);
    Buffer pages(2 * layout.stride_bytes());
    std::memset(pages.data(), static_cast<int>(kOld), pages.size());
    WriteTokens(ops(), layout, 2, 3, pages);  // the second half of a page, and one of the next
    EXPECT_EQ(BytesAt(layout, pages, 1, 1), old);
    EXPECT_EQ(BytesAt(layout, pages, 0, 1), zeros);
    EXPECT_EQ(BytesAt(layout, pages, 0, 3), zeros);

    std::byte* begun = pages.data() + layout.key_offset(1, 3);
    *begun = kOld;
    WriteTokens(ops(), layout, 5, 2, pages);
    EXPECT_EQ(*begun, kOld) << "a page that was begun before is left alone";
  }
}

TEST_P(MovementTest, GatherRowsPicksRows) {
  const std::vector<float> x = RandomFloats(6 * 21);
  const std::vector<int32_t> index = {5, 0, 5, 3};
  std::vector<float> out(4 * 20);
  const TestContext context(ops(), 2);
  ASSERT_TRUE(ops()
                  .gather_rows(*context,
                               {.x = x.data(),
                                .x_stride = 21,
                                .row_index = index.data(),
                                .rows = 4,
                                .dim = 19,
                                .out = out.data(),
                                .out_stride = 20})
                  .ok());
  for (size_t i = 0; i < index.size(); ++i) {
    ExpectSameBits(std::span(out).subspan(i * 20, 19),
                   std::span(x).subspan(static_cast<size_t>(index[i]) * 21, 19));
    EXPECT_EQ(out[i * 20 + 19], 0.0f);
  }
}

TEST_P(MovementTest, CopyPagesCopiesWholePages) {
  const DensePageLayout layout = {.page_tokens = 3, .kv_heads = 1, .head_dim = 5};
  const size_t stride = layout.stride_bytes();
  Buffer pages(4 * stride);
  for (size_t i = 0; i < pages.size(); ++i) {
    pages.data()[i] = static_cast<std::byte>(i);
  }
  const std::vector<std::byte> before(pages.bytes().begin(), pages.bytes().end());
  const int32_t source[] = {0, 3};
  const int32_t target[] = {2, 1};
  const TestContext context(ops(), 1);
  ASSERT_TRUE(ops()
                  .copy_pages(*context,
                              {.source = source,
                               .target = target,
                               .count = 2,
                               .base = pages.data(),
                               .stride_bytes = static_cast<int64_t>(stride)})
                  .ok());
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(std::memcmp(pages.data() + static_cast<size_t>(target[i]) * stride,
                          before.data() + static_cast<size_t>(source[i]) * stride,
                          stride),
              0);
    EXPECT_EQ(std::memcmp(pages.data() + static_cast<size_t>(source[i]) * stride,
                          before.data() + static_cast<size_t>(source[i]) * stride,
                          stride),
              0);
  }
}

INSTANTIATE_TEST_SUITE_P(Backends,
                         MovementTest,
                         testing::ValuesIn(kBackends),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace baton::kernels
