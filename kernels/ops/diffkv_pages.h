// The page manager of format `diffkv`: which head gets which page (DiffKV section 5.2). Integer
// work that is the same in every back end on host memory.
#pragma once

#include <cstdint>

#include "absl/status/status.h"

#include "kernels/ops/diffkv_params.h"

namespace baton::kernels {

// Page `page` of a tier of one head: high pages from the left, low pages from the right.
constexpr int32_t DiffKvColumn(const DiffKvLayer& layer, int32_t tier, int32_t page) {
  return tier == kDiffKvHigh ? page : layer.columns - 1 - page;
}
constexpr int32_t& DiffKvPageId(const DiffKvLayer& layer,
                                int32_t head,
                                int32_t tier,
                                int32_t page) {
  return layer.page_table[int64_t{head} * layer.columns + DiffKvColumn(layer, tier, page)];
}
constexpr int32_t& DiffKvCount(const DiffKvLayer& layer, int32_t head, int32_t tier) {
  return layer.token_counts[head * kDiffKvTiers + tier];
}
constexpr std::byte* DiffKvPageData(const DiffKvPages& pages, int32_t id) {
  return pages.base + static_cast<size_t>(id) * pages.geometry.page_bytes();
}
constexpr std::byte* DiffKvPageData(
    const DiffKvPages& pages, const DiffKvLayer& layer, int32_t head, int32_t tier, int32_t page) {
  return DiffKvPageData(pages, DiffKvPageId(layer, head, tier, page));
}

// The slot of a tier that an action writes, less than zero: none; and whether it is a new one.
constexpr int32_t DiffKvSlot(const DiffKvAction& action, int32_t tier) {
  return tier == kDiffKvHigh ? action.high_slot : action.demoted_to;
}
constexpr bool DiffKvGrows(const DiffKvAction& action, int32_t tier) {
  return tier == kDiffKvHigh ? action.appended : action.low_appended;
}

// The action's slots are of a head with these counts, or those that it grows by.
constexpr bool FitsCounts(const DiffKvAction& action, int32_t high, int32_t low) {
  const bool high_fits =
      action.appended ? action.high_slot == high : action.high_slot >= 0 && action.high_slot < high;
  const bool low_fits = action.low_appended ? action.demoted_to == low
                                            : action.demoted_to >= -1 && action.demoted_to < low;
  return high_fits && low_fits;
}

// The ops of these names, for host tables.
absl::Status AssignDiffKvPages(const DiffKvAssignPagesParams& params);
absl::Status ReleaseDiffKvPages(const DiffKvReleasePagesParams& params);
absl::Status TakeDiffKvPages(const DiffKvTakePagesParams& params);

}  // namespace baton::kernels
