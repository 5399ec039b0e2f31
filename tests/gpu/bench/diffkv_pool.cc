#include "tests/gpu/bench/diffkv_pool.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

#include "common/base/status_macros.h"
#include "kernels/cuda/runtime/device_queue.h"
#include "kernels/kv_format/diffkv.h"
#include "kernels/ops/diffkv_params.h"
#include "tests/gpu/bench/device_arena.h"
#include "tests/gpu/bench/diffkv_arrays.h"
#include "tests/gpu/bench/diffkv_load.h"
#include "tests/gpu/bench/fill.h"

namespace baton::kernels::cuda {
namespace {

constexpr uint32_t kSeed = 20240521;

// Which page is whose, and what pages hold.
struct Plan {
  std::vector<int32_t> tables;
  std::vector<int32_t> spare;
  std::vector<DiffKvPageFill> fills;  // by id
};

// True for the columns between high and low pages.
bool IsSpare(const DiffKvLoad& load, int32_t column) {
  return column >= load.tier_pages(kDiffKvHigh) &&
         column < load.columns() - load.tier_pages(kDiffKvLow);
}

// What the page of a column holds.
DiffKvPageFill FillOf(const DiffKvLoad& load, int32_t column) {
  const bool low = column >= load.columns() - load.tier_pages(kDiffKvLow);
  const int32_t tier = low ? kDiffKvLow : kDiffKvHigh;
  const int32_t page_tokens = DiffKvPageTokens(load.geometry.tiers[tier]);
  if (IsSpare(load, column)) {
    return {.tier = tier, .tokens = page_tokens};
  }
  const int32_t first = (low ? load.columns() - 1 - column : column) * page_tokens;
  return {.tier = tier,
          .tokens = std::min(page_tokens, load.tier_tokens(tier) - first),
          .first_position = first + (low ? 0 : load.tier_tokens(kDiffKvLow))};
}

Plan MakePlan(const DiffKvLoad& load) {
  std::vector<int32_t> ids(static_cast<size_t>(load.pages()));
  std::iota(ids.begin(), ids.end(), 0);
  std::shuffle(ids.begin(), ids.end(), std::mt19937(kSeed));
  Plan plan;
  plan.tables.resize(ids.size(), -1);
  plan.fills.resize(ids.size());
  for (size_t i = 0; i < ids.size(); ++i) {
    const auto column = static_cast<int32_t>(i % static_cast<size_t>(load.columns()));
    plan.fills[static_cast<size_t>(ids[i])] = FillOf(load, column);
    if (IsSpare(load, column)) {
      plan.spare.push_back(ids[i]);
    } else {
      plan.tables[i] = ids[i];
    }
  }
  return plan;
}

std::vector<int32_t> Counts(const DiffKvLoad& load) {
  std::vector<int32_t> counts;
  for (int64_t head = 0; head < load.sequences() * load.geometry.kv_heads; ++head) {
    counts.push_back(load.tier_tokens(kDiffKvHigh));
    counts.push_back(load.tier_tokens(kDiffKvLow));
  }
  return counts;
}

std::vector<DiffKvLease> Leases(const DiffKvArrays& arrays) {
  std::vector<DiffKvLease> leases;
  leases.reserve(static_cast<size_t>(arrays.load.rows));
  const int64_t each = arrays.spare_of_row();
  for (int32_t row = 0; row < arrays.load.rows; ++row) {
    leases.push_back({.ids = arrays.spare + row * each, .count = static_cast<int32_t>(each)});
  }
  return leases;
}

}  // namespace

absl::StatusOr<DiffKvPool> DiffKvPool::Make(const DeviceQueue& queue, const DiffKvLoad& load) {
  DiffKvPool made;
  DeviceArena& arena = made.arena_;
  DiffKvArrays& arrays = made.arrays_;
  const Plan plan = MakePlan(load);
  arrays = {.load = load,
            .pages = arena.Allocate<std::byte>(static_cast<int64_t>(load.pool_bytes())),
            .tables = arena.Upload(plan.tables),
            .counts = arena.Upload(Counts(load)),
            .spare = arena.Upload(plan.spare)};
  arrays.leases = arena.Upload(Leases(arrays));
  DeviceArena scratch;
  const DiffKvPageFill* fills = scratch.Upload(plan.fills);
  BATON_RETURN_IF_ERROR(arena.status());
  BATON_RETURN_IF_ERROR(scratch.status());
  BATON_RETURN_IF_ERROR(
      FillDiffKvPages(queue, load.geometry, arrays.pages, fills, load.pages(), kSeed));
  BATON_RETURN_IF_ERROR(queue.Wait());
  return made;
}

}  // namespace baton::kernels::cuda
