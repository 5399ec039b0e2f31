#include "common/kv/manifest/head_range.h"

#include <cstdint>
#include <utility>
#include <vector>

#include "gmock/gmock.h"

#include "common/kv/manifest/layout.h"
#include "kernels/core/dtype.h"
#include "kernels/kv_format/dense.h"

namespace baton::kv {
namespace {

using ::testing::ElementsAre;
using Page = kernels::DensePageLayout;

TEST(HeadRangeTest, RanksHaveEqualRangesInOrder) {
  EXPECT_THAT(*HeadsOfRanks(8, 1), ElementsAre(HeadRange{0, 8}));
  EXPECT_THAT(*HeadsOfRanks(8, 4),
              ElementsAre(HeadRange{0, 2}, HeadRange{2, 4}, HeadRange{4, 6}, HeadRange{6, 8}));
}

TEST(HeadRangeTest, FewerHeadsThanRanksAreOnSeveral) {
  EXPECT_THAT(*HeadsOfRanks(2, 4),
              ElementsAre(HeadRange{0, 1}, HeadRange{0, 1}, HeadRange{1, 2}, HeadRange{1, 2}));
}

TEST(HeadRangeTest, NumbersThatDoNotDivideAreRefused) {
  for (const auto& [heads, ranks] : std::vector<std::pair<int64_t, int64_t>>{
           {3, 2}, {6, 4}, {5, 8}, {8, 0}, {0, 1}, {8, 1 << 20}}) {
    EXPECT_EQ(HeadsOfRanks(heads, ranks).status().code(), absl::StatusCode::kFailedPrecondition)
        << heads << " heads, " << ranks << " ranks";
  }
}

// A byte of a page belongs to one head, and all bytes to some.
TEST(HeadRangeTest, PiecesOfAllRangesAreThePage) {
  for (const kernels::DType type :
       {kernels::DType::kF32, kernels::DType::kBF16, kernels::DType::kF8E4M3}) {
    const Page page{.page_tokens = 4, .kv_heads = 8, .head_dim = 16, .dtype = type};
    std::vector<int> owners(page.page_bytes());
    for (const HeadRange& heads : {HeadRange{0, 1}, HeadRange{1, 4}, HeadRange{4, 8}}) {
      for (const PagePiece& piece : PiecesOfHeads(page, heads)) {
        for (int64_t at = piece.offset; at < piece.offset + piece.size_bytes; ++at) {
          ++owners[static_cast<size_t>(at)];
        }
      }
    }
    EXPECT_THAT(owners, ::testing::Each(1)) << kernels::DTypeName(type);
  }
}

TEST(HeadRangeTest, OnlyPagesThatAreOfHeadsAreDivided) {
  const Page page{.page_tokens = 4, .kv_heads = 4, .head_dim = 8};
  v1::KvLayout layout = DenseLayout(1, 2, page);
  EXPECT_EQ(MakeWindowGeometry(layout, 4, {.per_layer = 1})->divided, page);
  layout.set_format("shadowkv");
  const auto whole = MakeWindowGeometry(layout, 4, {.per_layer = 1});
  EXPECT_FALSE(whole->divided.has_value());
  EXPECT_THAT(whole->pieces(0, {.begin = 1, .end = 2}),
              ElementsAre(PagePiece{0, static_cast<int64_t>(page.page_bytes())}));
}

}  // namespace
}  // namespace baton::kv
