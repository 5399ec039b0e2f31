// Generation steps of format `diffkv` on the device against the reference: actions, counts, page
// tables, leases and every byte of the pages.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <random>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

#include "kernels/kv_format/diffkv.h"
#include "kernels/kv_format/unobserved_range.h"
#include "kernels/ops/diffkv_params.h"
#include "kernels/reference/reference_ops.h"
#include "tests/gpu/support/device_diffkv.h"
#include "tests/gpu/support/gpu_test.h"
#include "tests/kernels/support/backends.h"
#include "tests/kernels/support/diffkv_problem.h"

namespace baton::kernels::cuda {
namespace {

constexpr DiffKvTier kTierPairs[][kDiffKvTiers] = {{{8, 4}, {4, 2}},
                                                   {{8, 8}, {8, 4}},
                                                   {{8, 8}, {4, 4}},
                                                   {{4, 4}, {4, 2}},
                                                   {{4, 2}, {4, 2}},
                                                   {{8, 8}, {8, 8}}};

void ExpectSameActions(const std::vector<DiffKvAction>& got,
                       const std::vector<DiffKvAction>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(got[i].high_slot, want[i].high_slot) << "head " << i << "; " << SeedMessage();
    EXPECT_EQ(got[i].demoted_to, want[i].demoted_to) << "head " << i << "; " << SeedMessage();
    EXPECT_EQ(got[i].appended, want[i].appended) << "head " << i << "; " << SeedMessage();
    EXPECT_EQ(got[i].low_appended, want[i].low_appended) << "head " << i << "; " << SeedMessage();
    for (int32_t tier = 0; tier < kDiffKvTiers; ++tier) {
      EXPECT_EQ(got[i].pages[tier], want[i].pages[tier]) << "head " << i << "; " << SeedMessage();
    }
  }
}

class DiffKvAppendGpuTest : public GpuTest {
 protected:
  absl::Status TakePages(const DiffKvAppendParams& params) const {
    return ops().diffkv_take_pages(
        context(),
        {.rows = params.rows, .layers = 1, .sequences = params.num_rows, .pages = params.pages});
  }

  void AppendRows(const DeviceDiffKvTokens& tokens,
                  const std::vector<DiffKvAppendRow>& rows,
                  const DiffKvPages& pages) const {
    const DeviceArray<DiffKvAppendRow> device_rows(rows);
    DiffKvAppendParams params = tokens.params();
    params.rows = device_rows.data();
    params.num_rows = static_cast<int64_t>(rows.size());
    params.pages = pages;
    absl::Status status = ops().diffkv_sweep(
        context(), {.rows = params.rows, .num_rows = params.num_rows, .pages = pages});
    ASSERT_TRUE(status.ok()) << status;
    status = TakePages(params);
    ASSERT_TRUE(status.ok()) << status;
    status = ops().diffkv_append(context(), params);
    ASSERT_TRUE(status.ok()) << status;
    Wait();
  }

  // The same step of the reference and of the device, from the same bytes.
  void CheckStep(DiffKvCache& cache,
                 const DiffKvPolicy& policy,
                 int32_t position,
                 bool sweep) const {
    const TestContext host(ReferenceOps(), 1);
    DiffKvCache got = cache;
    const DeviceDiffKvCache device(got);
    const DevicePolicy device_policy(policy);
    const auto seed = static_cast<uint32_t>(position);
    const DeviceDiffKvTokens token(cache.shape.geometry, {seed});
    ASSERT_TRUE(cache.Append(ReferenceOps(), *host, policy, position, seed, sweep).ok());
    ASSERT_NO_FATAL_FAILURE(AppendRows(
        token, {DeviceAppendRow(0, device, device_policy, position, sweep)}, device.pages()));
    device.Download(got);
    ASSERT_NO_FATAL_FAILURE(ExpectSameActions(got.actions, cache.actions));
    ASSERT_NO_FATAL_FAILURE(ExpectSameCache(got, cache));
  }
};

TEST_F(DiffKvAppendGpuTest, StepsLeaveTheSameBytes) {
  constexpr int32_t kTokens = 100;
  constexpr int32_t kSteps = 45;
  const TestContext host(ReferenceOps(), 1);
  for (const DiffKvRule rule : {DiffKvRule::kRelease, DiffKvRule::kPaper}) {
    for (const int32_t head_dim : {64, 128}) {
      for (const auto& tiers : kTierPairs) {
        const DiffKvShape shape = {
            .geometry = {.kv_heads = 3, .head_dim = head_dim, .tiers = {tiers[0], tiers[1]}}};
        SCOPED_TRACE(Describe(shape));
        DiffKvPolicy policy = MixedPolicy(kTokens);
        policy.rule = rule;
        policy.sinks = 2;
        const DiffKvPrompt prompt(shape.geometry, kTokens);
        DiffKvCache cache(shape, kTokens + kSteps);
        cache.Load(ReferenceOps(), *host, prompt, policy);
        for (int32_t p = kTokens; p < kTokens + kSteps; ++p) {
          ASSERT_NO_FATAL_FAILURE(CheckStep(cache, policy, p, p % 5 != 0)) << "position " << p;
          cache.Attend(ReferenceOps(), *host, p, static_cast<uint32_t>(p));
        }
      }
    }
  }
}

// Scores of few levels, so that the victim is the lowest slot among many equals.
TEST_F(DiffKvAppendGpuTest, TheLowestSlotIsTheVictimAmongEqualsInManySplits) {
  const TestContext host(ReferenceOps(), 1);
  constexpr int32_t kTokens = 12000;
  for (const auto& tiers : {kTierPairs[0], kTierPairs[2]}) {
    const DiffKvShape shape = {
        .geometry = {.kv_heads = 2, .head_dim = 64, .tiers = {tiers[0], tiers[1]}}};
    DiffKvPrompt prompt(shape.geometry, kTokens);
    std::mt19937 random(TestSeed());
    for (float& score : prompt.scores) {
      score = static_cast<float>(1 + random() % 4) * 32.0f / kTokens;
    }
    const DiffKvPolicy policy = MixedPolicy(kTokens);
    DiffKvCache cache(shape, kTokens + 8);
    cache.Load(ReferenceOps(), *host, prompt, policy);
    for (int32_t p = kTokens; p < kTokens + 8; ++p) {
      ASSERT_NO_FATAL_FAILURE(CheckStep(cache, policy, p, true)) << "position " << p;
    }
  }
}

TEST_F(DiffKvAppendGpuTest, ManyUnobservedRangesCount) {
  const TestContext host(ReferenceOps(), 1);
  constexpr int32_t kTokens = 400;
  std::vector<UnobservedRange> ranges;
  for (int32_t begin = 0; begin < 350; begin += 7) {
    ranges.push_back(
        {.begin = begin, .end = begin + 1 + begin % 5, .observed_shift = begin % 2 == 0 ? 31 : 2});
  }
  const DiffKvShape shape = {.geometry = {.kv_heads = 2, .head_dim = 64}};
  const DiffKvPrompt prompt(shape.geometry, kTokens);
  for (const int32_t count : {0, 1, 32, 33, static_cast<int32_t>(ranges.size())}) {
    DiffKvPolicy policy = {.alpha_high = 1.0f, .alpha_low = 0.2f, .window = 16};
    policy.unobserved = ranges.data();
    policy.unobserved_count = count;
    DiffKvCache cache(shape, kTokens + 3);
    cache.Load(ReferenceOps(), *host, prompt, policy);
    for (int32_t p = kTokens; p < kTokens + 3; ++p) {
      ASSERT_NO_FATAL_FAILURE(CheckStep(cache, policy, p, true)) << count << " ranges";
    }
  }
}

TEST_F(DiffKvAppendGpuTest, FirstTokensOfAnEmptySequence) {
  const DiffKvShape shape = {.geometry = {.kv_heads = 9, .head_dim = 128}};
  DiffKvCache cache(shape, 100);
  for (int32_t p = 0; p < 70; ++p) {
    ASSERT_NO_FATAL_FAILURE(CheckStep(cache, MixedPolicy(0), p, true)) << "position " << p;
  }
}

TEST_F(DiffKvAppendGpuTest, HeadsOfAllNumbersGetTheirPagesInOrder) {
  const TestContext host(ReferenceOps(), 1);
  constexpr int32_t kTokens = 62;
  for (const int32_t kv_heads : {1, 2, 8, 11, 33, 128, 600}) {
    SCOPED_TRACE(absl::StrCat(kv_heads, " heads"));
    const DiffKvShape shape = {.geometry = {.kv_heads = kv_heads, .head_dim = 64}};
    const DiffKvPolicy policy = MixedPolicy(kTokens);
    const DiffKvPrompt prompt(shape.geometry, kTokens);
    DiffKvCache cache(shape, kTokens + 8);
    cache.Load(ReferenceOps(), *host, prompt, policy);
    for (int32_t p = kTokens; p < kTokens + 8; ++p) {
      ASSERT_NO_FATAL_FAILURE(CheckStep(cache, policy, p, p % 3 == 0)) << "position " << p;
    }
  }
}

// Steps that follow each other without a wait: what begins early must not read what the steps in
// front have yet to write.
TEST_F(DiffKvAppendGpuTest, StepsInARowSeeEachOther) {
  const TestContext host(ReferenceOps(), 1);
  constexpr int32_t kTokens = 90;
  constexpr int32_t kSteps = 50;
  const DiffKvShape shape = {.geometry = {.kv_heads = 5, .head_dim = 128}};
  const DiffKvPolicy policy = MixedPolicy(kTokens);
  const DiffKvPrompt prompt(shape.geometry, kTokens);
  DiffKvCache want(shape, kTokens + kSteps);
  want.Load(ReferenceOps(), *host, prompt, policy);
  DiffKvCache got = want;
  const DeviceDiffKvCache device(got);
  const DevicePolicy device_policy(policy);
  std::vector<uint32_t> seeds;
  std::vector<DiffKvAppendRow> rows;
  for (int32_t step = 0; step < kSteps; ++step) {
    const int32_t position = kTokens + step;
    seeds.push_back(static_cast<uint32_t>(position));
    rows.push_back(DeviceAppendRow(step, device, device_policy, position, step % 2 == 0));
    ASSERT_TRUE(
        want.Append(ReferenceOps(), *host, policy, position, seeds.back(), step % 2 == 0).ok());
  }
  const DeviceDiffKvTokens tokens(shape.geometry, seeds);
  const DeviceArray<DiffKvAppendRow> device_rows(rows);
  DiffKvAppendParams params = tokens.params();
  params.num_rows = 1;
  params.pages = device.pages();
  for (int32_t step = 0; step < kSteps; ++step) {
    params.rows = device_rows.data() + step;
    ASSERT_TRUE(
        ops()
            .diffkv_sweep(context(), {.rows = params.rows, .num_rows = 1, .pages = params.pages})
            .ok());
    ASSERT_TRUE(TakePages(params).ok());
    ASSERT_TRUE(ops().diffkv_append(context(), params).ok());
  }
  Wait();
  device.Download(got);
  ExpectSameActions(got.actions, want.actions);
  ExpectSameCache(got, want);
}

TEST_F(DiffKvAppendGpuTest, ARowWhoseSweepIsOfOtherTokensStaysAsItIs) {
  const TestContext host(ReferenceOps(), 1);
  constexpr int32_t kTokens = 100;
  const DiffKvShape shape = {.geometry = {.kv_heads = 3, .head_dim = 64}};
  const DiffKvPolicy policy = MixedPolicy(kTokens);
  const DiffKvPrompt prompt(shape.geometry, kTokens);
  DiffKvCache cache(shape, kTokens + 1);
  cache.Load(ReferenceOps(), *host, prompt, policy);
  const int32_t high = cache.Count(1, kDiffKvHigh);
  const int32_t low = cache.Count(1, kDiffKvLow);
  for (const DiffKvAction& action : {DiffKvAction{.high_slot = -1},
                                     DiffKvAction{.high_slot = high},
                                     DiffKvAction{.high_slot = high - 1, .appended = true},
                                     DiffKvAction{.high_slot = 0, .demoted_to = low},
                                     DiffKvAction{.high_slot = 0, .demoted_to = -2},
                                     DiffKvAction{.demoted_to = low - 1, .low_appended = true}}) {
    DiffKvCache before = cache;
    before.actions = {{.high_slot = 0}, action, {.high_slot = 0}};
    const DeviceDiffKvCache device(before);
    const DevicePolicy device_policy(policy);
    const DeviceDiffKvTokens token(shape.geometry, {7});
    const DeviceArray<DiffKvAppendRow> rows(
        {DeviceAppendRow(0, device, device_policy, kTokens, true)});
    DiffKvAppendParams params = token.params();
    params.rows = rows.data();
    params.num_rows = 1;
    params.pages = device.pages();
    ASSERT_TRUE(TakePages(params).ok());
    ASSERT_TRUE(ops().diffkv_append(context(), params).ok());
    Wait();
    DiffKvCache after = before;
    device.Download(after);
    ExpectSameActions(after.actions, std::vector<DiffKvAction>(3));
    ExpectSameCache(after, before);
  }
}

// More rows than a block of the sweep looks at in one go, few of which sweep; all of them name the
// caches of two sequences.
TEST_F(DiffKvAppendGpuTest, FewOfManyRowsSweep) {
  const TestContext host(ReferenceOps(), 1);
  constexpr int32_t kTokens = 300;
  constexpr int32_t kRows = 2500;
  const DiffKvShape shape = {.geometry = {.kv_heads = 3, .head_dim = 64}};
  const DiffKvPolicy policy = MixedPolicy(kTokens);
  const DiffKvPrompt prompt(shape.geometry, kTokens);
  DiffKvCache cache(shape, kTokens + 1);
  cache.Load(ReferenceOps(), *host, prompt, policy);
  const DeviceDiffKvCache device(cache);
  const DevicePolicy device_policy(policy);
  const std::vector<DiffKvAction> none(3);
  const auto actions = DeviceArray<DiffKvAction>(std::vector<DiffKvAction>(kRows * 3));
  std::vector<DiffKvAppendRow> rows;
  for (int32_t r = 0; r < kRows; ++r) {
    const bool sweeps = r % 37 == 5 || r == kRows - 1;
    rows.push_back(DeviceAppendRow(0, device, device_policy, kTokens, sweeps));
    rows.back().actions = actions.data() + int64_t{r} * 3;
  }
  const DeviceArray<DiffKvAppendRow> device_rows(rows);
  ASSERT_TRUE(
      ops()
          .diffkv_sweep(context(),
                        {.rows = device_rows.data(), .num_rows = kRows, .pages = device.pages()})
          .ok());
  Wait();
  const std::vector<DiffKvAction> got = actions.Get();
  ASSERT_TRUE(cache.Append(ReferenceOps(), *host, policy, kTokens, 0).ok());
  std::vector<DiffKvAction> decided = cache.actions;
  for (DiffKvAction& action : decided) {  // pages come later
    std::fill(std::begin(action.pages), std::end(action.pages), -1);
  }
  for (size_t r = 0; r < rows.size(); ++r) {
    SCOPED_TRACE(absl::StrCat("row ", r));
    const auto begin = got.begin() + static_cast<std::ptrdiff_t>(3 * r);
    ASSERT_NO_FATAL_FAILURE(ExpectSameActions({begin, begin + 3}, rows[r].sweep ? decided : none));
  }
}

// Sequences whose pools are one on the device; the host's caches keep ids of their own.
class DiffKvRowsGpuTest : public DiffKvAppendGpuTest {
 protected:
  static void ShiftIds(DiffKvCache& cache, int32_t by) {
    for (int32_t& id : cache.table) id += id < 0 ? 0 : by;
    for (int32_t& id : cache.ids) id += by;
    for (DiffKvAction& action : cache.actions) {
      for (int32_t& id : action.pages) id += id < 0 ? 0 : by;
    }
  }
  static int32_t Pages(const DiffKvCache& cache) { return static_cast<int32_t>(cache.ids.size()); }

  // Appends one token to each, then gives the caches as the device left them.
  std::vector<DiffKvCache> Append(const std::vector<DiffKvCache>& caches,
                                  const std::vector<DiffKvPolicy>& policies,
                                  const std::vector<int32_t>& positions) const {
    std::vector<std::byte> joint;
    std::vector<DeviceDiffKvCache> devices;
    std::vector<DevicePolicy> device_policies;
    const DiffKvGeometry& geometry = caches.front().shape.geometry;
    const DeviceDiffKvTokens tokens(geometry, {positions.begin(), positions.end()});
    std::vector<DiffKvAppendRow> rows;
    int32_t shift = 0;
    for (size_t i = 0; i < caches.size(); ++i) {
      DiffKvCache shifted = caches[i];
      ShiftIds(shifted, shift);
      devices.emplace_back(shifted);
      device_policies.emplace_back(policies[i]);
      rows.push_back(DeviceAppendRow(
          static_cast<int32_t>(i), devices[i], device_policies[i], positions[i], i % 4 != 3));
      joint.insert(joint.end(), shifted.pool.begin(), shifted.pool.end());
      shift += Pages(shifted);
    }
    const DeviceArray<std::byte> pool(joint);
    AppendRows(tokens, rows, {.base = pool.data(), .geometry = geometry});
    joint = pool.Get();
    std::vector<DiffKvCache> after = caches;
    auto begin = joint.begin();
    shift = 0;
    for (size_t i = 0; i < caches.size(); ++i) {
      devices[i].Download(after[i]);
      ShiftIds(after[i], -shift);
      shift += Pages(after[i]);
      const auto size = static_cast<std::ptrdiff_t>(after[i].pool.size());
      std::copy(begin, begin + size, after[i].pool.begin());
      begin += size;
    }
    return after;
  }
};

TEST_F(DiffKvRowsGpuTest, RowsOfManySequencesAreAppendedAtOnce) {
  const TestContext host(ReferenceOps(), 1);
  const DiffKvShape shape = {.geometry = {.kv_heads = 3, .head_dim = 128}};
  std::vector<DiffKvCache> want;
  std::vector<DiffKvPolicy> policies;
  std::vector<int32_t> positions;
  for (const int32_t tokens : {1, 31, 32, 33, 64, 200, 777, 1500, 65, 15}) {
    const DiffKvPrompt prompt(shape.geometry, tokens);
    policies.push_back(MixedPolicy(tokens));
    policies.back().rule = tokens % 2 == 0 ? DiffKvRule::kRelease : DiffKvRule::kPaper;
    positions.push_back(tokens);
    want.emplace_back(shape, tokens + 40);
    want.back().Load(ReferenceOps(), *host, prompt, policies.back());
  }
  for (int32_t step = 0; step < 40; ++step) {
    const std::vector<DiffKvCache> got = Append(want, policies, positions);
    for (size_t i = 0; i < want.size(); ++i) {
      SCOPED_TRACE(absl::StrCat("row ", i, " step ", step));
      const auto seed = static_cast<uint32_t>(positions[i]);
      ASSERT_TRUE(
          want[i].Append(ReferenceOps(), *host, policies[i], positions[i], seed, i % 4 != 3).ok());
      ASSERT_NO_FATAL_FAILURE(ExpectSameActions(got[i].actions, want[i].actions));
      ASSERT_NO_FATAL_FAILURE(ExpectSameCache(got[i], want[i]));
      want[i].Attend(ReferenceOps(), *host, positions[i], seed);
      ++positions[i];
    }
  }
}

TEST_F(DiffKvRowsGpuTest, ARowWithoutPagesStaysAsItIsAndOthersGoOn) {
  const TestContext host(ReferenceOps(), 1);
  const DiffKvShape shape = {.geometry = {.kv_heads = 3, .head_dim = 64}};
  constexpr int32_t kTokens = 64;  // two full pages of the high tier in every head
  const DiffKvPolicy policy = AfterPrompt({.alpha_high = 0.0f}, kTokens);
  const DiffKvPrompt prompt(shape.geometry, kTokens);
  DiffKvCache cache(shape, kTokens + 10);
  cache.Load(ReferenceOps(), *host, prompt, policy);
  DiffKvCache short_lease = cache;
  short_lease.lease.count = cache.lease.used + 2;
  DiffKvCache full_table = cache;
  full_table.columns = 2;
  full_table.table.clear();
  for (size_t head = 0; head < 3; ++head) {
    const auto begin = cache.table.begin() + static_cast<std::ptrdiff_t>(head) * cache.columns;
    full_table.table.insert(full_table.table.end(), begin, begin + 2);
  }
  const std::vector<DiffKvCache> before = {cache, short_lease, full_table, cache};
  const std::vector<DiffKvCache> got =
      Append(before, {policy, policy, policy, policy}, {kTokens, kTokens, kTokens, kTokens});
  ASSERT_TRUE(cache.Append(ReferenceOps(), *host, policy, kTokens, kTokens).ok());
  for (const size_t row : {0u, 3u}) {
    ExpectSameActions(got[row].actions, cache.actions);
    ExpectSameCache(got[row], cache);
  }
  for (const size_t row : {1u, 2u}) {
    ExpectSameActions(got[row].actions, std::vector<DiffKvAction>(3));
    ExpectSameCache(got[row], before[row]);
  }
}

TEST_F(DiffKvAppendGpuTest, NoRowsDoNothing) {
  EXPECT_TRUE(ops().diffkv_sweep(context(), {}).ok());
  EXPECT_TRUE(ops().diffkv_take_pages(context(), {}).ok());
  EXPECT_TRUE(ops().diffkv_append(context(), {}).ok());
}

}  // namespace
}  // namespace baton::kernels::cuda
