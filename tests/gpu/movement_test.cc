// Ops that move elements on the device: embed, gather_rows, copy_pages, kv_write, fp8_encode and
// the rows of wire form `hidden`. Every byte is the reference's.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "kernels/core/buffer.h"
#include "kernels/core/dtype.h"
#include "kernels/core/exec_context.h"
#include "kernels/core/half.h"
#include "kernels/cuda/runtime/device_queue.h"
#include "kernels/kv_format/dense.h"
#include "kernels/kv_format/hidden.h"
#include "kernels/ops/fp8_params.h"
#include "kernels/ops/hidden_params.h"
#include "kernels/ops/op_table.h"
#include "kernels/ops/params.h"
#include "kernels/reference/reference_ops.h"
#include "tests/gpu/support/gpu_test.h"
#include "tests/kernels/support/backends.h"

namespace baton::kernels::cuda {
namespace {

class EmbedGpuTest : public GpuTest {};
class GatherRowsGpuTest : public GpuTest {};
class CopyPagesGpuTest : public GpuTest {};
class KvWriteGpuTest : public GpuTest {};
class Fp8EncodeGpuTest : public GpuTest {};
class HiddenGpuTest : public GpuTest {};

constexpr uint16_t kPoison = 0xffff;

std::vector<float> RandomBf16(size_t count, float scale = 1.0f) {
  return RoundedTo(RandomFloats(count, scale), DType::kBF16);
}

std::vector<uint16_t> Bf16Bits(std::span<const float> values) {
  std::vector<uint16_t> bits(values.size());
  std::transform(values.begin(), values.end(), bits.begin(), F32ToBF16);
  return bits;
}

TEST_F(EmbedGpuTest, GivesTheRowsOfTheTokens) {
  for (const int64_t dim : {1, 19, 64, 1000, 1024, 4096, 5120}) {
    const std::vector<int32_t> ids = {63, 0, 17, 17, 5};
    const std::vector<uint16_t> table = Bf16Bits(RandomFloats(static_cast<size_t>(64 * dim)));
    const DeviceArray<uint16_t> device_table(table);
    const DeviceArray<int32_t> device_ids(ids);
    const auto out = DeviceArray<uint16_t>::Poisoned(ids.size() * static_cast<size_t>(dim));
    const absl::Status status =
        ops().embed(context(),
                    {.table = reinterpret_cast<const std::byte*>(device_table.data()),
                     .dtype = DType::kBF16,
                     .vocab = 64,
                     .dim = dim,
                     .token_ids = device_ids.data(),
                     .rows = static_cast<int64_t>(ids.size()),
                     .out = out.data()});
    ASSERT_TRUE(status.ok()) << status;
    Wait();
    std::vector<uint16_t> want;
    for (const int32_t id : ids) {
      const auto row = table.begin() + id * dim;
      want.insert(want.end(), row, row + dim);
    }
    EXPECT_EQ(out.Get(), want) << "dim " << dim << "; " << SeedMessage();
  }
}

TEST_F(EmbedGpuTest, NamesATypeItHasNot) {
  const auto memory = DeviceArray<uint16_t>::Poisoned(64);
  const DeviceArray<int32_t> ids(std::vector<int32_t>{0});
  const absl::Status status =
      ops().embed(context(),
                  {.table = reinterpret_cast<const std::byte*>(memory.data()),
                   .dtype = DType::kF32,
                   .vocab = 1,
                   .dim = 8,
                   .token_ids = ids.data(),
                   .rows = 1,
                   .out = memory.data()});
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_NE(status.message().find("dtype is f32"), std::string::npos) << status;
}

// Rows with what lies between them, which stays as it was.
void CheckGatherRows(const OpTable& ops,
                     const ExecContext& context,
                     int64_t dim,
                     int64_t x_stride,
                     int64_t out_stride) {
  const std::vector<int32_t> index = {5, 0, 5, 3, 6};
  const std::vector<uint16_t> x = Bf16Bits(RandomFloats(static_cast<size_t>(7 * x_stride)));
  const DeviceArray<uint16_t> device_x(x);
  const DeviceArray<int32_t> device_index(index);
  const size_t out_elements = index.size() * static_cast<size_t>(out_stride);
  const auto out = DeviceArray<uint16_t>::Poisoned(out_elements);
  const absl::Status status = ops.gather_rows(context,
                                              {.x = device_x.data(),
                                               .x_stride = x_stride,
                                               .row_index = device_index.data(),
                                               .rows = static_cast<int64_t>(index.size()),
                                               .dim = dim,
                                               .out = out.data(),
                                               .out_stride = out_stride});
  ASSERT_TRUE(status.ok()) << status;
  ASSERT_TRUE(context.queue->Wait().ok());
  std::vector<uint16_t> want(out_elements, kPoison);
  for (size_t row = 0; row < index.size(); ++row) {
    std::copy_n(x.begin() + index[row] * x_stride,
                dim,
                want.begin() + static_cast<int64_t>(row) * out_stride);
  }
  EXPECT_EQ(out.Get(), want) << dim << " of " << x_stride << " to " << out_stride << "; "
                             << SeedMessage();
}

TEST_F(GatherRowsGpuTest, PicksRows) {
  for (const int64_t dim : {1, 8, 19, 64, 1000, 4096, 9001}) {
    CheckGatherRows(ops(), context(), dim, dim, dim);
    CheckGatherRows(ops(), context(), dim, dim + 8, dim + 16);
    CheckGatherRows(ops(), context(), dim, dim + 2, dim + 1);
  }
}

TEST_F(GatherRowsGpuTest, NoRowsNeedNoMemory) {
  EXPECT_TRUE(ops().gather_rows(context(), {.rows = 0, .dim = 8}).ok());
  Wait();
}

TEST_F(CopyPagesGpuTest, CopiesWholePages) {
  for (const DensePageLayout& layout :
       {DensePageLayout{.page_tokens = 3, .kv_heads = 1, .head_dim = 5},
        DensePageLayout{.kv_heads = 8, .head_dim = 128},
        DensePageLayout{
            .page_tokens = 16, .kv_heads = 3, .head_dim = 64, .dtype = DType::kF8E4M3}}) {
    const size_t stride = layout.stride_bytes();
    std::vector<uint8_t> pool(5 * stride);
    std::mt19937 random(TestSeed());
    std::generate(pool.begin(), pool.end(), [&] { return static_cast<uint8_t>(random()); });
    const std::vector<int32_t> source = {0, 3};
    const std::vector<int32_t> target = {2, 1};
    const DeviceArray<uint8_t> device_pool(pool);
    const DeviceArray<int32_t> device_source(source);
    const DeviceArray<int32_t> device_target(target);
    const absl::Status status =
        ops().copy_pages(context(),
                         {.source = device_source.data(),
                          .target = device_target.data(),
                          .count = 2,
                          .base = reinterpret_cast<std::byte*>(device_pool.data()),
                          .stride_bytes = static_cast<int64_t>(stride)});
    ASSERT_TRUE(status.ok()) << status;
    Wait();
    const std::vector<uint8_t> got = device_pool.Get();
    const size_t origins[] = {0, 3, 0, 3, 4};  // of each page
    for (size_t page = 0; page < 5; ++page) {
      EXPECT_EQ(
          std::memcmp(got.data() + page * stride, pool.data() + origins[page] * stride, stride), 0)
          << "page " << page << " of " << stride << " bytes";
    }
  }
}

// The rows of a step, by their sequences' first positions and counts.
struct StepRows {
  int32_t first_position = 0;
  int32_t count = 0;
};

// A step whose sequences have shuffled pages, and the same on the device.
class KvStep {
 public:
  KvStep(const DensePageLayout& layout, const std::vector<StepRows>& rows, int64_t padding)
      : layout_(layout), width_(int64_t{layout.kv_heads} * layout.head_dim), padding_(padding) {
    int32_t tokens = 0;
    for (const StepRows& sequence : rows) {
      tokens = std::max(tokens, sequence.first_position + sequence.count);
      for (int32_t i = 0; i < sequence.count; ++i) {
        positions_.push_back(sequence.first_position + i);
      }
    }
    table_pages_ = layout.pages_for(tokens);
    page_table_.resize(rows.size() * static_cast<size_t>(table_pages_));
    std::iota(page_table_.begin(), page_table_.end(), 0);
    std::mt19937 random(TestSeed());
    std::shuffle(page_table_.begin(), page_table_.end(), random);
    rows_ = rows;
    k_ = RandomBf16(positions_.size() * static_cast<size_t>(stride()));
    v_ = RandomBf16(k_.size(), 100.0f);
  }

  int64_t stride() const { return width_ + padding_; }
  std::vector<float>& k() { return k_; }
  std::vector<float>& v() { return v_; }

  // Every byte of the pool after the step is what the reference writes; other bytes stay.
  void Check(const OpTable& ops, const ExecContext& context) const {
    Buffer want(page_table_.size() * layout_.stride_bytes());
    std::memset(want.data(), 0xff, want.size());
    std::vector<SequenceRows> sequences = Sequences(page_table_.data());
    KvWriteParams params = {.k = k_.data(),
                            .k_stride = stride(),
                            .v = v_.data(),
                            .v_stride = stride(),
                            .positions = positions_.data(),
                            .sequences = sequences.data(),
                            .num_sequences = static_cast<int64_t>(sequences.size()),
                            .pages = {.base = want.data(), .layout = layout_}};
    const TestContext host(ReferenceOps(), 1);
    ASSERT_TRUE(ReferenceOps().kv_write(*host, params).ok());

    const DeviceArray<uint16_t> k = Activations(k_);
    const DeviceArray<uint16_t> v = Activations(v_);
    const DeviceArray<int32_t> positions(positions_);
    const DeviceArray<int32_t> page_table(page_table_);
    const DeviceArray<SequenceRows> device_sequences(Sequences(page_table.data()));
    const auto pool = DeviceArray<uint8_t>::Poisoned(want.size());
    params.k = k.data();
    params.v = v.data();
    params.positions = positions.data();
    params.sequences = device_sequences.data();
    params.pages.base = reinterpret_cast<std::byte*>(pool.data());
    const absl::Status status = ops.kv_write(context, params);
    ASSERT_TRUE(status.ok()) << status;
    ASSERT_TRUE(context.queue->Wait().ok());
    const std::vector<uint8_t> got = pool.Get();
    const auto* want_bytes = reinterpret_cast<const uint8_t*>(want.data());
    const auto i =
        static_cast<size_t>(std::mismatch(got.begin(), got.end(), want_bytes).first - got.begin());
    EXPECT_EQ(i, got.size()) << "byte " << i % layout_.stride_bytes() << " of page "
                             << i / layout_.stride_bytes() << ", " << DTypeName(layout_.dtype)
                             << ", " << layout_.kv_heads << " heads of " << layout_.head_dim << "; "
                             << SeedMessage();
  }

 private:
  std::vector<SequenceRows> Sequences(const int32_t* page_table) const {
    std::vector<SequenceRows> sequences;
    int32_t row = 0;
    for (size_t s = 0; s < rows_.size(); ++s) {
      sequences.push_back({.row_begin = row,
                           .row_count = rows_[s].count,
                           .page_table = page_table + static_cast<int64_t>(s) * table_pages_});
      row += rows_[s].count;
    }
    return sequences;
  }

  DensePageLayout layout_;
  int64_t width_;
  int64_t padding_;
  std::vector<StepRows> rows_;
  std::vector<int32_t> positions_;
  int32_t table_pages_ = 0;
  std::vector<int32_t> page_table_;
  std::vector<float> k_;
  std::vector<float> v_;
};

TEST_F(KvWriteGpuTest, WritesEveryRowToItsSlot) {
  const std::vector<StepRows> rows = {{5, 1}, {0, 9}, {3, 0}, {30, 7}, {0, 1}};
  for (const DType dtype : {DType::kBF16, DType::kF8E4M3}) {
    for (const int32_t head_dim : {5, 8, 24, 64, 80, 128, 256, 320}) {
      for (const int32_t kv_heads : {1, 2, 3, 8}) {
        const DensePageLayout layout = {
            .page_tokens = 4, .kv_heads = kv_heads, .head_dim = head_dim, .dtype = dtype};
        KvStep(layout, rows, 0).Check(ops(), context());
        KvStep(layout, rows, 3).Check(ops(), context());
      }
    }
  }
}

// More sequences than a warp has lanes, and more rows than the launch has blocks.
TEST_F(KvWriteGpuTest, FindsTheSequencesOfABatch) {
  for (const int32_t num_sequences : {31, 32, 33, 64, 100, 1030}) {
    std::vector<StepRows> rows;
    rows.reserve(static_cast<size_t>(num_sequences));
    for (int32_t s = 0; s < num_sequences; ++s) {
      rows.push_back({.first_position = s % 3, .count = s % 5});
    }
    for (const DType dtype : {DType::kBF16, DType::kF8E4M3}) {
      KvStep({.page_tokens = 4, .kv_heads = 1, .head_dim = 8, .dtype = dtype}, rows, 0)
          .Check(ops(), context());
    }
  }
}

TEST_F(KvWriteGpuTest, Fp8CodesOfExtremesAreTheReferences) {
  KvStep step(
      {.page_tokens = 8, .kv_heads = 1, .head_dim = 64, .dtype = DType::kF8E4M3}, {{0, 6}}, 0);
  const float rows[6] = {0.0f, -0.0f, 1e-39f, 3e38f, 1e-30f, 1.0f};
  for (int64_t row = 0; row < 6; ++row) {
    for (int64_t i = 0; i < 64; ++i) {
      // From the largest magnitude down to far below the smallest step.
      const double value = double{rows[row]} * std::pow(0.7, static_cast<double>(i));
      const auto signed_value = static_cast<float>(i % 2 == 0 ? value : -value);
      step.k()[static_cast<size_t>(row * step.stride() + i)] = BF16ToF32(F32ToBF16(signed_value));
    }
  }
  step.v()[3] = INFINITY;
  step.v()[static_cast<size_t>(step.stride()) + 7] = std::bit_cast<float>(0xffc00000u);
  step.Check(ops(), context());
}

TEST_F(KvWriteGpuTest, NamesATypeItHasNot) {
  const auto memory = DeviceArray<uint8_t>::Poisoned(4096);
  const DeviceArray<SequenceRows> sequences(std::vector<SequenceRows>(1));
  const absl::Status status = ops().kv_write(
      context(),
      {.k = memory.data(),
       .k_stride = 8,
       .v = memory.data(),
       .v_stride = 8,
       .positions = reinterpret_cast<const int32_t*>(memory.data()),
       .sequences = sequences.data(),
       .num_sequences = 1,
       .pages = {
           .base = reinterpret_cast<std::byte*>(memory.data()),
           .layout = {.page_tokens = 4, .kv_heads = 1, .head_dim = 8, .dtype = DType::kF32}}});
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_NE(status.message().find("pages.layout.dtype is f32"), std::string::npos) << status;
}

// Ids of so many pages in any order.
std::vector<int32_t> ShuffledPages(int32_t pages) {
  std::vector<int32_t> ids(static_cast<size_t>(pages));
  std::iota(ids.begin(), ids.end(), 0);
  std::mt19937 random(TestSeed());
  std::shuffle(ids.begin(), ids.end(), random);
  return ids;
}

// Codes the tokens [first, tokens) on the device and on the host.
void CheckFp8Encode(const OpTable& ops,
                    const ExecContext& context,
                    const DensePageLayout& source,
                    int32_t page_tokens,
                    int32_t first,
                    int32_t tokens) {
  SCOPED_TRACE(testing::Message() << source.kv_heads << " heads of " << source.head_dim << ", ["
                                  << first << ", " << tokens << "); " << SeedMessage());
  DensePageLayout layout = source;
  layout.page_tokens = page_tokens;
  layout.dtype = DType::kF8E4M3;
  const std::vector<int32_t> source_table = ShuffledPages(source.pages_for(tokens));
  const std::vector<int32_t> table = ShuffledPages(layout.pages_for(tokens));
  const size_t source_bytes = source_table.size() * source.stride_bytes();
  const std::vector<uint16_t> pages = Bf16Bits(RandomFloats(source_bytes / sizeof(uint16_t)));
  Buffer host_pages(source_bytes);
  std::memcpy(host_pages.data(), pages.data(), source_bytes);
  Buffer want(table.size() * layout.stride_bytes());
  std::memset(want.data(), 0xff, want.size());
  Fp8EncodeParams params = {.source = {host_pages.data(), source},
                            .source_table = source_table.data(),
                            .first_token = first,
                            .tokens = tokens,
                            .page_table = table.data(),
                            .pages = {want.data(), layout}};
  const TestContext host(ReferenceOps(), 1);
  ASSERT_TRUE(ReferenceOps().fp8_encode(*host, params).ok());

  const DeviceArray<uint16_t> device_pages(pages);
  const DeviceArray<int32_t> device_source_table(source_table);
  const DeviceArray<int32_t> device_table(table);
  const auto pool = DeviceArray<uint8_t>::Poisoned(want.size());
  params.source.base = reinterpret_cast<std::byte*>(device_pages.data());
  params.source_table = device_source_table.data();
  params.page_table = device_table.data();
  params.pages.base = reinterpret_cast<std::byte*>(pool.data());
  const absl::Status status = ops.fp8_encode(context, params);
  ASSERT_TRUE(status.ok()) << status;
  ASSERT_TRUE(context.queue->Wait().ok());
  const std::vector<uint8_t> got = pool.Get();
  EXPECT_EQ(std::memcmp(got.data(), want.data(), got.size()), 0);
}

TEST_F(Fp8EncodeGpuTest, CodesAsTheReference) {
  for (const int32_t kv_heads : {1, 3, 8}) {
    for (const int32_t head_dim : {5, 24, 64, 128, 256}) {
      const DensePageLayout source = {
          .page_tokens = 32, .kv_heads = kv_heads, .head_dim = head_dim};
      CheckFp8Encode(ops(), context(), source, /*page_tokens=*/5, /*first=*/0, /*tokens=*/131);
      CheckFp8Encode(ops(), context(), source, /*page_tokens=*/32, /*first=*/33, /*tokens=*/1700);
    }
  }
}

TEST_F(Fp8EncodeGpuTest, TokensBeforeTheFirstStayAsTheyAre) {
  const DensePageLayout source = {.page_tokens = 16, .kv_heads = 2, .head_dim = 64};
  for (const int32_t first : {0, 30, 64, 65, 70, 71, 72}) {
    CheckFp8Encode(ops(), context(), source, /*page_tokens=*/32, first, /*tokens=*/72);
  }
}

TEST_F(Fp8EncodeGpuTest, NamesATypeItHasNot) {
  const auto memory = DeviceArray<uint8_t>::Poisoned(8192);
  auto* const base = reinterpret_cast<std::byte*>(memory.data());
  const DeviceArray<int32_t> table(std::vector<int32_t>(1));
  const DensePageLayout layout = {
      .page_tokens = 4, .kv_heads = 1, .head_dim = 8, .dtype = DType::kF8E4M3};
  DensePageLayout source = layout;
  source.dtype = DType::kF32;
  const absl::Status status = ops().fp8_encode(context(),
                                               {.source = {base, source},
                                                .source_table = table.data(),
                                                .tokens = 4,
                                                .page_table = table.data(),
                                                .pages = {base + 4096, layout}});
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_NE(status.message().find("source.layout.dtype is f32"), std::string::npos) << status;
}

// Encodes rows on the device and on the host, then decodes them on both.
void CheckHidden(const OpTable& ops,
                 const ExecContext& context,
                 const HiddenRowLayout& layout,
                 int64_t padding) {
  SCOPED_TRACE(testing::Message() << DTypeName(layout.dtype) << " width " << layout.width << " + "
                                  << padding);
  constexpr int64_t kRows = 5;
  const int64_t stride = layout.width + padding;
  std::vector<float> x = RandomBf16(static_cast<size_t>(kRows * stride));
  for (int64_t i = 0; i < layout.width; ++i) {
    x[static_cast<size_t>(stride + i)] = 0.0f;
    x[static_cast<size_t>(2 * stride + i)] *= i % 5 == 0 ? 0x1p13f : 0x1p-4f;
    x[static_cast<size_t>(3 * stride + i)] *= 0x1p-30f;
  }
  const size_t coded_bytes = kRows * layout.row_bytes();
  std::vector<uint8_t> want_coded(coded_bytes);
  HiddenEncodeParams encode = {.x = x.data(),
                               .x_stride = stride,
                               .rows = kRows,
                               .layout = layout,
                               .coded = reinterpret_cast<std::byte*>(want_coded.data())};
  const TestContext host(ReferenceOps(), 1);
  ASSERT_TRUE(ReferenceOps().hidden_encode(*host, encode).ok());
  const DeviceArray<uint16_t> device_x = Activations(x);
  const auto coded = DeviceArray<uint8_t>::Poisoned(coded_bytes);
  encode.x = device_x.data();
  encode.coded = reinterpret_cast<std::byte*>(coded.data());
  absl::Status status = ops.hidden_encode(context, encode);
  ASSERT_TRUE(status.ok()) << status;
  ASSERT_TRUE(context.queue->Wait().ok());
  ASSERT_EQ(coded.Get(), want_coded) << SeedMessage();

  std::vector<float> decoded(x.size());
  HiddenDecodeParams decode = {.coded = reinterpret_cast<const std::byte*>(want_coded.data()),
                               .rows = kRows,
                               .layout = layout,
                               .out = decoded.data(),
                               .out_stride = stride};
  ASSERT_TRUE(ReferenceOps().hidden_decode(*host, decode).ok());
  std::vector<uint16_t> want = Bf16Bits(decoded);
  for (int64_t i = 0; i < kRows * stride; ++i) {
    want[static_cast<size_t>(i)] =
        i % stride < layout.width ? want[static_cast<size_t>(i)] : kPoison;
  }
  const auto out = DeviceArray<uint16_t>::Poisoned(x.size());
  decode.coded = encode.coded;
  decode.out = out.data();
  status = ops.hidden_decode(context, decode);
  ASSERT_TRUE(status.ok()) << status;
  ASSERT_TRUE(context.queue->Wait().ok());
  ASSERT_EQ(out.Get(), want) << SeedMessage();
}

TEST_F(HiddenGpuTest, CodesAndDecodesAsTheReference) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF8E4M3}) {
    for (const int32_t width : {1, 8, 100, 128, 136, 515, 896, 1024, 2048, 4096}) {
      for (const int64_t padding : {0, 8, 3}) {
        CheckHidden(ops(), context(), {.width = width, .dtype = dtype}, padding);
      }
    }
  }
}

TEST_F(HiddenGpuTest, NamesRowsThatElementsDoNotFit) {
  const DeviceArray<uint16_t> x = Activations(RandomFloats(16));
  const auto coded = DeviceArray<uint8_t>::Poisoned(64);
  const absl::Status status =
      ops().hidden_encode(context(),
                          {.x = x.data(),
                           .x_stride = 16,
                           .rows = 1,
                           .layout = {.width = 16, .dtype = DType::kBF16},
                           .coded = reinterpret_cast<std::byte*>(coded.data() + 1)});
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("coded"), std::string::npos) << status;
}

}  // namespace
}  // namespace baton::kernels::cuda
