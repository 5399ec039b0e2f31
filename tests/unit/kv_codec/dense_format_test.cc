// KV format `dense` as the engine sees it.
#include "common/kv/codec/dense_format.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <utility>

#include "common/kv/codec/kv_format.h"
#include "common/kv/codec/kv_policy.h"
#include "kernels/core/dtype.h"

namespace baton::kv {
namespace {

std::unique_ptr<KvFormat> Dense(kernels::DType dtype = kernels::DType::kBF16) {
  auto format = DenseFormat::Create({.layers = 3, .kv_heads = 2, .head_dim = 8},
                                    {.page_tokens = 4, .dtype = dtype});
  EXPECT_TRUE(format.ok()) << format.status();
  return *std::move(format);
}

TEST(DenseFormatTest, NamesItselfAndItsLayout) {
  const auto format = Dense();
  EXPECT_EQ(format->name(), "dense");
  EXPECT_EQ(format->version(), 1);
  EXPECT_EQ(format->observation_window(), 1);
  EXPECT_EQ(format->page_tables(), 3);
  EXPECT_EQ(format->page_bytes(), 2u * 2 * 4 * 8 * 2);
}

TEST(DenseFormatTest, PagesRoundUp) {
  const auto format = Dense();
  EXPECT_EQ(format->PagesPerTable(0), 0);
  EXPECT_EQ(format->PagesPerTable(1), 1);
  EXPECT_EQ(format->PagesPerTable(4), 1);
  EXPECT_EQ(format->PagesPerTable(5), 2);
}

TEST(DenseFormatTest, LogicalBytesDoNotDependOnTheDtype) {
  EXPECT_EQ(KvFormat::LogicalBytes({.layers = 3, .kv_heads = 2, .head_dim = 8}, 10),
            10 * 3 * 2 * 2 * 8 * 2);
  EXPECT_EQ(Dense()->ResidentBytes(5), 2 * 3 * 256);
  EXPECT_EQ(Dense(kernels::DType::kF32)->ResidentBytes(5), 2 * 3 * 512);
}

TEST(DenseFormatTest, OnlyWholePagesAreFinalUntilThePromptEnds) {
  const auto format = Dense();
  EXPECT_EQ(format->FinalPages(0, 10), 0);
  EXPECT_EQ(format->FinalPages(3, 10), 0);
  EXPECT_EQ(format->FinalPages(4, 10), 1);
  EXPECT_EQ(format->FinalPages(9, 10), 2);
  EXPECT_EQ(format->FinalPages(10, 10), 3);
  EXPECT_EQ(format->FinalPages(8, 8), 2);
}

TEST(DenseFormatTest, StrideIsAlignedForOddGeometries) {
  const auto format =
      DenseFormat::Create({.layers = 1, .kv_heads = 1, .head_dim = 5}, {.page_tokens = 3});
  ASSERT_TRUE(format.ok());
  EXPECT_EQ((*format)->page_bytes(), 60u);
  EXPECT_EQ((*format)->stride_bytes(), 64u);
}

TEST(DenseFormatTest, RefusesDimensionsAndTypesItCannotDo) {
  const KvDimensions good = {.layers = 1, .kv_heads = 1, .head_dim = 8};
  EXPECT_EQ(DenseFormat::Create({.layers = 0, .kv_heads = 1, .head_dim = 8}, {}).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(DenseFormat::Create(good, {.page_tokens = 0}).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(DenseFormat::Create(good, {.dtype = kernels::DType::kI32}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace baton::kv
