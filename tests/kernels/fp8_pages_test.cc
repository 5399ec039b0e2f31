// Pages of KV format `fp8`: their exact bytes, their error, and the same bytes and values on every
// back end. Attention over random fp8 pages is in attention_parity_test.cc.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "kernels/core/buffer.h"
#include "kernels/core/dtype.h"
#include "kernels/core/float8.h"
#include "kernels/kv_format/dense.h"
#include "kernels/kv_format/fp8.h"
#include "kernels/ops/op_table.h"
#include "kernels/ops/params.h"
#include "kernels/ops/validate.h"
#include "kernels/reference/reference_ops.h"
#include "tests/kernels/support/backends.h"

namespace baton::kernels {
namespace {

class Fp8PagesTest : public BackendTest {};

// Writes rows 0 .. rows - 1 of k and v into consecutive pages, unwritten bytes being 0xaa.
std::vector<std::byte> Write(const OpTable& ops,
                             const DensePageLayout& layout,
                             const std::vector<float>& k,
                             const std::vector<float>& v) {
  const int64_t width = int64_t{layout.kv_heads} * layout.head_dim;
  const auto rows = static_cast<int64_t>(k.size()) / width;
  std::vector<int32_t> positions;
  std::vector<int32_t> page_table;
  for (int32_t row = 0; row < rows; ++row) {
    positions.push_back(row);
    page_table.push_back(row);
  }
  const SequenceRows sequence = {
      .row_begin = 0, .row_count = static_cast<int32_t>(rows), .page_table = page_table.data()};
  Buffer pages(static_cast<size_t>(layout.pages_for(rows)) * layout.stride_bytes());
  std::memset(pages.data(), 0xaa, pages.size());
  const TestContext context(ops, 2);
  const absl::Status status = ops.kv_write(*context,
                                           {.k = k.data(),
                                            .k_stride = width,
                                            .v = v.data(),
                                            .v_stride = width,
                                            .positions = positions.data(),
                                            .sequences = &sequence,
                                            .num_sequences = 1,
                                            .pages = {.base = pages.data(), .layout = layout}});
  EXPECT_TRUE(status.ok()) << status;
  return {pages.bytes().begin(), pages.bytes().end()};
}

TEST_P(Fp8PagesTest, ASmallPageHasExactlyTheseBytes) {
  const DensePageLayout layout = {
      .page_tokens = 2, .kv_heads = 1, .head_dim = 3, .dtype = DType::kF8E4M3};
  ASSERT_EQ(layout.page_bytes(), 2u * 2 * 3 + 2u * 2 * sizeof(float));
  const std::vector<float> k = {448.0f, -1.0f, 17.0f, 0.0f, -0.0f, 0.0f};
  const std::vector<float> v = {-896.0f, 2.0f, 0.00390625f, 3.5f, 1.75f, 0.0f};
  const std::vector<std::byte> page = Write(ops(), layout, k, v);
  const std::vector<uint8_t> want = {
      0x7e, 0xb8, 0x58,  // keys of token 0, scale 1: 448, -1, 17 is a tie and becomes 16
      0x00, 0x00, 0x00,  // keys of token 1: all zero
      0xfe, 0x38, 0x01,  // values of token 0, scale 2: -448, 1, 2^-9
      0x7e, 0x76, 0x00,  // values of token 1, scale 3.5 / 448: 448, 224, 0
      0x00, 0x00, 0x80, 0x3f, 0x00, 0x00, 0x00, 0x00,   // key scales 1 and 0
      0x00, 0x00, 0x00, 0x40, 0x00, 0x00, 0x00, 0x3c};  // value scales 2 and 2^-7
  ASSERT_EQ(want.size(), layout.page_bytes());
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_EQ(std::to_integer<int>(page[i]), want[i]) << "byte " << i;
  }
  EXPECT_EQ(page[layout.page_bytes()], std::byte{0xaa});
}

TEST(Fp8PageLayoutTest, ScalesFollowTheElementsOnAMultipleOfFour) {
  const DensePageLayout layout = {
      .page_tokens = 3, .kv_heads = 1, .head_dim = 5, .dtype = DType::kF8E4M3};
  EXPECT_EQ(layout.value_offset(0, 0), 15u);
  EXPECT_EQ(layout.key_scale_offset(0, 0), 32u);
  EXPECT_EQ(layout.value_scale_offset(0, 0), 32u + 12);
  EXPECT_EQ(layout.value_scale_offset(0, 2), 32u + 20);
  EXPECT_EQ(layout.page_bytes(), 32u + 24);
  const DensePageLayout two = {
      .page_tokens = 4, .kv_heads = 2, .head_dim = 8, .dtype = DType::kF8E4M3};
  EXPECT_EQ(two.key_scale_offset(1, 3), 128u + 4 * 7);
  EXPECT_EQ(two.value_scale_offset(1, 3), 128u + 4 * 15);
}

TEST(Fp8PageLayoutTest, OpsTakePagesOfF32BF16AndFp8) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF8E4M3, DType::kU8}) {
    Buffer pages(64);
    const int32_t zero = 0;
    const float element = 0.0f;
    const SequenceRows sequence = {.row_count = 1, .page_table = &zero};
    const absl::Status status = Validate(KvWriteParams{
        .k = &element,
        .k_stride = 1,
        .v = &element,
        .v_stride = 1,
        .positions = &zero,
        .rows = 1,
        .sequences = &sequence,
        .num_sequences = 1,
        .pages = {.base = pages.data(), .layout = {.kv_heads = 1, .head_dim = 1, .dtype = dtype}}});
    EXPECT_EQ(status.ok(), dtype != DType::kU8) << status;
  }
}

// Heads whose magnitudes span all of fp32, with zeros, subnormals and values that are not finite.
std::vector<float> HardFloats(size_t count, int32_t head_dim) {
  std::mt19937 random(TestSeed());
  std::vector<float> values = RandomFloats(count);
  for (size_t head = 0; head < count / static_cast<size_t>(head_dim); ++head) {
    const int exponent = std::uniform_int_distribution<int>(-150, 127)(random);
    const size_t begin = head * static_cast<size_t>(head_dim);
    for (size_t i = begin; i < begin + static_cast<size_t>(head_dim); ++i) {
      switch (random() % 16) {
        case 0:
          values[i] = 0.0f;
          break;
        case 1:
          values[i] *= 1e-3f;
          break;
        default:
          break;
      }
      values[i] = std::ldexp(values[i], exponent);
    }
    switch (random() % 12) {
      case 0:
        values[begin] = -INFINITY;
        break;
      case 1:
        values[begin] = std::bit_cast<float>(0x7f800001u);  // a signaling NaN
        break;
      case 2:
        std::fill_n(values.begin() + static_cast<std::ptrdiff_t>(begin), head_dim, -0.0f);
        break;
      default:
        break;
    }
  }
  return values;
}

TEST_P(Fp8PagesTest, TheBytesAreThoseOfTheReference) {
  SCOPED_TRACE(SeedMessage());
  for (const int32_t head_dim : {1, 3, 5, 8, 16, 24, 40, 64, 80, 128}) {
    const DensePageLayout layout = {
        .page_tokens = 5, .kv_heads = 3, .head_dim = head_dim, .dtype = DType::kF8E4M3};
    const size_t count = static_cast<size_t>(layout.kv_heads * head_dim) * 67;
    const std::vector<float> k = HardFloats(count, head_dim);
    const std::vector<float> v = RandomFloats(count);
    ASSERT_EQ(Write(ops(), layout, k, v), Write(ReferenceOps(), layout, k, v)) << head_dim;
  }
}

TEST_P(Fp8PagesTest, AnElementComesBackWithinTheStatedError) {
  SCOPED_TRACE(SeedMessage());
  const DensePageLayout layout = {
      .page_tokens = 16, .kv_heads = 2, .head_dim = 64, .dtype = DType::kF8E4M3};
  const size_t count = size_t{2} * 64 * 48;
  const std::vector<float> k = RandomFloats(count, 20.0f);
  const std::vector<float> v = RandomFloats(count, 0.01f);
  const std::vector<std::byte> pages = Write(ops(), layout, k, v);
  const auto check = [&](const std::vector<float>& x, size_t row, int32_t head, bool values) {
    const auto slot = static_cast<int32_t>(row % 16);
    const std::byte* page = pages.data() + row / 16 * layout.stride_bytes();
    const std::byte* codes =
        page + (values ? layout.value_offset(head, slot) : layout.key_offset(head, slot));
    float scale = 0.0f;
    std::memcpy(&scale,
                page + (values ? layout.value_scale_offset(head, slot)
                               : layout.key_scale_offset(head, slot)),
                sizeof(scale));
    for (size_t i = 0; i < 64; ++i) {
      const float want = x[row * 128 + static_cast<size_t>(head) * 64 + i];
      const float got = F8E4M3ToF32(std::to_integer<uint8_t>(codes[i])) * scale;
      const double bound = std::max(std::fabs(double{want}) / 16, double{scale} / 1024);
      ASSERT_LE(std::fabs(double{got} - double{want}), bound * (1 + 1e-6)) << want;
    }
  };
  for (size_t row = 0; row < 48; ++row) {
    for (const int32_t head : {0, 1}) {
      check(k, row, head, false);
      check(v, row, head, true);
    }
  }
}

TEST(Fp8EncodeTest, AHeadThatIsNotFiniteReadsAsNaN) {
  for (const float bad : {INFINITY, -INFINITY, NAN}) {
    const std::array<float, 3> x = {1.0f, bad, -2.0f};
    std::array<uint8_t, 3> codes = {1, 2, 3};
    EXPECT_TRUE(std::isnan(EncodeFp8(x.data(), 3, codes.data())));
    EXPECT_EQ(codes, (std::array<uint8_t, 3>{0, 0, 0}));
  }
}

// Attention over one page of tokens whose codes the test writes itself.
std::vector<float> Attend(const OpTable& ops,
                          const DensePageLayout& layout,
                          std::byte* page,
                          const std::vector<float>& q,
                          int32_t last) {
  const auto rows = static_cast<int32_t>(q.size()) / layout.head_dim;
  const std::vector<int32_t> positions(static_cast<size_t>(rows), last);
  const int32_t page_table[] = {0};
  const SequenceRows sequence = {.row_begin = 0, .row_count = rows, .page_table = page_table};
  std::vector<float> out(q.size());
  const TestContext context(ops, 1);
  const absl::Status status = ops.paged_attention(*context,
                                                  {.q = q.data(),
                                                   .q_stride = layout.head_dim,
                                                   .positions = positions.data(),
                                                   .sequences = &sequence,
                                                   .num_sequences = 1,
                                                   .pages = {.base = page, .layout = layout},
                                                   .heads = 1,
                                                   .scale = 1.0f,
                                                   .out = out.data(),
                                                   .out_stride = layout.head_dim});
  EXPECT_TRUE(status.ok()) << status;
  return out;
}

constexpr DensePageLayout kAllCodes = {
    .page_tokens = 2, .kv_heads = 1, .head_dim = 256, .dtype = DType::kF8E4M3};

// One token whose values are all codes: its attention is the values themselves.
TEST_P(Fp8PagesTest, EveryValueCodeIsReadExactly) {
  Buffer page(kAllCodes.stride_bytes());
  for (size_t i = 0; i < 256; ++i) {
    page.data()[kAllCodes.value_offset(0, 0) + i] = static_cast<std::byte>(i);
  }
  const float scale = 0.3f;
  std::memcpy(page.data() + kAllCodes.value_scale_offset(0, 0), &scale, sizeof(scale));
  const std::vector<float> out = Attend(ops(), kAllCodes, page.data(), std::vector<float>(256), 0);
  for (size_t i = 0; i < 256; ++i) {
    const float want = F8E4M3ToF32(static_cast<uint8_t>(i)) * scale;
    if (std::isnan(want)) {
      EXPECT_TRUE(std::isnan(out[i])) << i;
    } else {
      EXPECT_EQ(out[i], want) << i;
    }
  }
}

// Query i looks at element i only, scaled so that its score is the key's sign: 2 log 2 x (+1, -1 or
// 0). The other token's score is 0, so the weights are 4 : 1, 1 : 4 or 1 : 1.
TEST_P(Fp8PagesTest, EveryKeyCodeIsReadExactly) {
  Buffer page(kAllCodes.stride_bytes());
  std::vector<float> q(size_t{256} * 256);
  const float scale = 0.5f;
  for (size_t i = 0; i < 256; ++i) {
    if ((i & 0x7f) == 0x7f) {
      continue;  // a NaN would show in every score
    }
    page.data()[kAllCodes.key_offset(0, 0) + i] = static_cast<std::byte>(i);
    const float value = F8E4M3ToF32(static_cast<uint8_t>(i)) * scale;
    q[i * 256 + i] = value == 0.0f ? 1.0f : 2 * std::log(2.0f) / std::fabs(value);
  }
  page.data()[kAllCodes.value_offset(0, 0)] = std::byte{0x38};  // 1
  for (const size_t offset :
       {kAllCodes.key_scale_offset(0, 0), kAllCodes.value_scale_offset(0, 0)}) {
    const float stored = offset == kAllCodes.key_scale_offset(0, 0) ? scale : 1.0f;
    std::memcpy(page.data() + offset, &stored, sizeof(stored));
  }
  const std::vector<float> out = Attend(ops(), kAllCodes, page.data(), q, 1);
  for (size_t i = 0; i < 256; ++i) {
    const bool zero = (i & 0x7f) == 0 || (i & 0x7f) == 0x7f;
    EXPECT_NEAR(out[i * 256], zero ? 0.5f : (i < 128 ? 0.8f : 0.2f), 1e-6) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Backends,
                         Fp8PagesTest,
                         testing::ValuesIn(kBackends),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace baton::kernels
