// The page manager of format `diffkv`: order of ids, refusal without change, drain and refill.
#include "kernels/ops/diffkv_pages.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "absl/status/status.h"

#include "kernels/kv_format/diffkv.h"
#include "kernels/ops/diffkv_params.h"
#include "kernels/select.h"
#include "tests/kernels/support/backends.h"

namespace baton::kernels {
namespace {

class DiffKvPagesTest : public BackendTest {
 protected:
  static constexpr DiffKvGeometry kGeometry = {.kv_heads = 2, .head_dim = 128};
  static constexpr int32_t kColumns = 6;

  DiffKvLayer layer() {
    return {.page_table = table_.data(), .token_counts = counts_.data(), .columns = kColumns};
  }
  absl::Status Assign() {
    return ops().diffkv_assign_pages(*context_,
                                     {.geometry = kGeometry, .layer = layer(), .lease = &lease_});
  }
  std::vector<int32_t> Release() {
    std::vector<int32_t> returned(table_.size(), -7);
    int32_t count = 0;
    const absl::Status status = ops().diffkv_release_pages(
        *context_,
        {.geometry = kGeometry, .layer = layer(), .ids = returned.data(), .count = &count});
    EXPECT_TRUE(status.ok()) << status;
    returned.resize(static_cast<size_t>(count));
    return returned;
  }
  void Offer(std::vector<int32_t> ids) {
    ids_ = std::move(ids);
    lease_ = {.ids = ids_.data(), .count = static_cast<int32_t>(ids_.size())};
  }

  TestContext context_{ReferenceOps(), 1};
  std::vector<int32_t> table_ = std::vector<int32_t>(2 * kColumns, -1);
  std::vector<int32_t> counts_ = std::vector<int32_t>(4, 0);
  std::vector<int32_t> ids_;
  DiffKvLease lease_;
};

TEST_P(DiffKvPagesTest, IdsGoToHeadsAndTiersInOrderHighFromTheLeftLowFromTheRight) {
  Offer({10, 11, 12, 13, 14, 15, 16, 17});
  counts_ = {33, 64, 0, 129};  // 2 high and 1 low page; 0 high and 3 low pages
  ASSERT_TRUE(Assign().ok());
  EXPECT_EQ(lease_.used, 6);
  EXPECT_EQ(table_, (std::vector<int32_t>{10, 11, -1, -1, -1, 12, -1, -1, -1, 15, 14, 13}));
  EXPECT_EQ(Release(), (std::vector<int32_t>{10, 11, 12, 13, 14, 15}));
  EXPECT_EQ(counts_, std::vector<int32_t>(4, 0));
}

TEST_P(DiffKvPagesTest, AShortLeaseIsRefusedAndNothingChanges) {
  Offer({10, 11, 12, 13, 14});
  counts_ = {33, 64, 0, 129};
  EXPECT_EQ(Assign().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(lease_.used, 0);
  EXPECT_EQ(table_, std::vector<int32_t>(2 * kColumns, -1));
}

TEST_P(DiffKvPagesTest, ColumnsNeverCross) {
  Offer({0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11});
  counts_ = {4 * 32, 2 * 64, 1, 5 * 64};  // exactly full, more low than half of the table
  ASSERT_TRUE(Assign().ok());
  std::vector<int32_t> sorted = table_;
  std::sort(sorted.begin(), sorted.end());
  EXPECT_EQ(sorted, ids_) << "every id in one cell";
  Release();
  lease_.used = 0;
  counts_ = {4 * 32 + 1, 2 * 64, 0, 0};
  EXPECT_EQ(Assign().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(lease_.used, 0);
}

// A pool as a ring of free ids: many sequences come and go, more pages are taken than there are,
// and the pool drains exactly to zero and fills again.
TEST_P(DiffKvPagesTest, ThePoolDrainsAndRefillsExactly) {
  std::vector<int32_t> free(2 * kColumns);
  std::iota(free.begin(), free.end(), 0);
  const std::vector<int32_t> all = free;
  for (int round = 0; round < 100; ++round) {
    const int32_t more = round % 32;
    counts_ = {6 * 32 - more, 0, more, 6 * 64 - 64 * ((more + 31) / 32)};
    Offer(free);
    ASSERT_TRUE(Assign().ok());
    std::vector<int32_t> rest(ids_.begin() + lease_.used, ids_.end());
    EXPECT_EQ(rest.size(), 0u) << "drained";
    const std::vector<int32_t> returned = Release();
    rest.insert(rest.end(), returned.begin(), returned.end());
    std::rotate(rest.begin(), rest.begin() + round % 12, rest.end());
    free = rest;
    std::sort(rest.begin(), rest.end());
    ASSERT_EQ(rest, all) << "round " << round;
  }
}

INSTANTIATE_TEST_SUITE_P(Backends,
                         DiffKvPagesTest,
                         testing::ValuesIn(kBackends),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace baton::kernels
