// The page manager of a generation step on the device against the reference: actions, counts, page
// tables, leases and the pages that become zeros.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

#include "kernels/kv_format/diffkv.h"
#include "kernels/ops/diffkv_params.h"
#include "kernels/reference/reference_ops.h"
#include "tests/gpu/support/gpu_test.h"
#include "tests/kernels/support/backends.h"
#include "tests/kernels/support/diffkv_step.h"

namespace baton::kernels::cuda {
namespace {

class DiffKvTakePagesGpuTest : public GpuTest {
 protected:
  // What the device makes of a step.
  DiffKvStep Taken(DiffKvStep step) const {
    const DeviceArray<int32_t> tables(step.tables);
    const DeviceArray<int32_t> counts(step.counts);
    const DeviceArray<DiffKvAction> actions(step.actions);
    const DeviceArray<std::byte> pool(step.pool);
    std::vector<DeviceArray<int32_t>> ids;
    std::vector<DiffKvLease> device_leases = step.leases;
    for (size_t i = 0; i < device_leases.size(); ++i) {
      ids.emplace_back(step.ids[i]);
      device_leases[i].ids = ids[i].data();
    }
    const DeviceArray<DiffKvLease> leases(device_leases);
    std::vector<DiffKvAppendRow> rows = step.Rows();
    for (DiffKvAppendRow& row : rows) {
      row.layer.page_table = tables.data() + (row.layer.page_table - step.tables.data());
      row.layer.token_counts = counts.data() + (row.layer.token_counts - step.counts.data());
      row.actions = actions.data() + (row.actions - step.actions.data());
      row.lease = leases.data() + (row.lease - step.leases.data());
    }
    const DeviceArray<DiffKvAppendRow> device_rows(rows);
    const absl::Status status =
        ops().diffkv_take_pages(context(),
                                {.rows = device_rows.data(),
                                 .layers = step.shape.layers,
                                 .sequences = step.shape.sequences,
                                 .pages = {.base = pool.data(), .geometry = step.shape.geometry}});
    EXPECT_TRUE(status.ok()) << status;
    Wait();
    step.tables = tables.Get();
    step.counts = counts.Get();
    step.actions = actions.Get();
    step.leases = leases.Get();
    step.pool = pool.Get();
    return step;
  }

  static absl::Status TakeOnHost(DiffKvStep& step) {
    const TestContext host(ReferenceOps(), 1);
    return step.TakePages(ReferenceOps(), *host);
  }
};

// Also more heads, over all layers, than a block has threads.
TEST_F(DiffKvTakePagesGpuTest, LayersAndSequencesTakeWhatTheReferenceGives) {
  for (const int32_t head_dim : {64, 128}) {
    for (const int32_t layers : {1, 2, 32, 70}) {
      for (const int32_t kv_heads : {1, 3, 8, 11}) {
        SCOPED_TRACE(absl::StrCat(layers, " layers, ", kv_heads, " heads of ", head_dim));
        const DiffKvStepShape shape = {.geometry = {.kv_heads = kv_heads, .head_dim = head_dim},
                                       .layers = layers,
                                       .sequences = 3,
                                       .columns = 6};
        DiffKvStep want(shape, 2 * layers * kv_heads);
        want.SetRandom(TestSeed() + static_cast<uint32_t>(layers * kv_heads));
        const DiffKvStep got = Taken(want);
        ASSERT_TRUE(TakeOnHost(want).ok());
        ASSERT_NO_FATAL_FAILURE(got.ExpectSameState(want, /*with_actions=*/true));
      }
    }
  }
}

TEST_F(DiffKvTakePagesGpuTest, ASequenceThatDoesNotFitStaysAsItIsAndOthersGoOn) {
  constexpr int32_t kLayers = 40;
  constexpr int32_t kHeads = 16;
  const DiffKvStepShape shape = {.geometry = {.kv_heads = kHeads, .head_dim = 64},
                                 .layers = kLayers,
                                 .sequences = 3,
                                 .columns = 6};
  DiffKvStep before(shape, 2 * kLayers * kHeads);
  before.SetRandom(TestSeed());
  DiffKvStep want = before;
  ASSERT_TRUE(TakeOnHost(want).ok());
  before.leases[1].count = want.leases[1].used - 1;  // one page short, for the last layer's heads
  // The last head of the last layer of sequence 2 has a decision that its tokens do not allow.
  before.sweeps.back() = true;
  before.actions.back() = {.high_slot = before.counts[before.counts.size() - kDiffKvTiers] + 1};
  const DiffKvStep got = Taken(before);
  // Sequence 0 is as the reference leaves it, the others as they were.
  want.leases[1].used = want.leases[2].used = 0;
  for (int32_t layer = 0; layer < kLayers; ++layer) {
    for (int32_t sequence = 1; sequence < 3; ++sequence) {
      const size_t first = want.Index({layer, sequence, 0});
      const auto restore = [&](auto& to, const auto& from, size_t each) {
        const auto begin = static_cast<std::ptrdiff_t>(first * each);
        std::copy_n(from.begin() + begin, each * kHeads, to.begin() + begin);
      };
      restore(want.tables, before.tables, 6);
      restore(want.counts, before.counts, kDiffKvTiers);
      std::fill_n(
          want.actions.begin() + static_cast<std::ptrdiff_t>(first), kHeads, DiffKvAction());
    }
  }
  const size_t page_bytes = shape.geometry.page_bytes();
  for (const size_t sequence : {1u, 2u}) {
    for (const int32_t id : before.ids[sequence]) {
      const auto begin = static_cast<std::ptrdiff_t>(static_cast<size_t>(id) * page_bytes);
      std::copy_n(before.pool.begin() + begin, page_bytes, want.pool.begin() + begin);
    }
  }
  got.ExpectSameState(want, /*with_actions=*/true);
}

TEST_F(DiffKvTakePagesGpuTest, MoreHeadsThanCanBeCountedAreRefused) {
  const DeviceArray<DiffKvAppendRow> rows(std::vector<DiffKvAppendRow>(1));
  const DeviceArray<std::byte> page(std::vector<std::byte>(64));
  const DiffKvTakePagesParams params = {
      .rows = rows.data(),
      .layers = int64_t{1} << 28,
      .sequences = 1,
      .pages = {.base = page.data(), .geometry = {.kv_heads = 8, .head_dim = 64}}};
  EXPECT_EQ(ops().diffkv_take_pages(context(), params).code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace baton::kernels::cuda
