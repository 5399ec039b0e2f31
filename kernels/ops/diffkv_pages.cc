#include "kernels/ops/diffkv_pages.h"

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

#include "kernels/kv_format/diffkv.h"
#include "kernels/ops/diffkv_params.h"
#include "kernels/ops/diffkv_policy.h"
#include "kernels/ops/validate.h"

namespace baton::kernels {
namespace {

int32_t PagesHeld(const DiffKvGeometry& geometry,
                  const DiffKvLayer& layer,
                  int32_t head,
                  int32_t tier) {
  return geometry.pages_for(tier, DiffKvCount(layer, head, tier));
}

// Pages of the tokens counted in `held` ([kv_heads][tiers]; null: none).
int32_t PagesBefore(const DiffKvGeometry& geometry,
                    const int32_t* held,
                    int32_t head,
                    int32_t tier) {
  return held == nullptr ? 0 : geometry.pages_for(tier, held[head * kDiffKvTiers + tier]);
}

absl::Status ShortLease(absl::string_view op, int32_t needed, const DiffKvLease& lease) {
  return absl::ResourceExhaustedError(absl::StrCat(
      op, ": ", needed, " pages are needed but the lease has ", lease.count - lease.used, " left"));
}

absl::Status FullTable(absl::string_view op, int32_t needed, int32_t columns) {
  return absl::ResourceExhaustedError(absl::StrCat(
      op, ": a head needs ", needed, " pages but its page table has ", columns, " columns"));
}

// True when the action adds a token to a tier whose last page is full.
bool TakesPage(const DiffKvGeometry& geometry,
               const DiffKvAppendRow& row,
               int32_t head,
               int32_t tier) {
  const DiffKvAction& action = row.actions[head];
  const bool grows = tier == kDiffKvHigh ? action.appended : action.low_appended;
  return grows && DiffKvCount(row.layer, head, tier) % DiffKvPageTokens(geometry.tiers[tier]) == 0;
}

// The row's new pages, or an error when they do not fit.
absl::Status CheckRow(const DiffKvGeometry& geometry, const DiffKvAppendRow& row) {
  int32_t taken = 0;
  for (int32_t head = 0; head < geometry.kv_heads; ++head) {
    int32_t pages = 0;
    for (int32_t tier = 0; tier < kDiffKvTiers; ++tier) {
      const int32_t more = TakesPage(geometry, row, head, tier) ? 1 : 0;
      pages += PagesHeld(geometry, row.layer, head, tier) + more;
      taken += more;
    }
    if (pages > row.layer.columns) {
      return FullTable("diffkv_append", pages, row.layer.columns);
    }
  }
  if (taken > row.lease->count - row.lease->used) {
    return ShortLease("diffkv_append", taken, *row.lease);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status AssignDiffKvPages(const DiffKvAssignPagesParams& params) {
  if (absl::Status status = Validate(params); !status.ok()) {
    return status;
  }
  const DiffKvGeometry& geometry = params.geometry;
  int32_t needed = 0;
  for (int32_t head = 0; head < geometry.kv_heads; ++head) {
    int32_t of_head = 0;
    for (int32_t tier = 0; tier < kDiffKvTiers; ++tier) {
      of_head += PagesHeld(geometry, params.layer, head, tier);
      needed -= PagesBefore(geometry, params.held, head, tier);
    }
    if (of_head > params.layer.columns) {
      return FullTable("diffkv_assign_pages", of_head, params.layer.columns);
    }
    needed += of_head;
  }
  DiffKvLease& lease = *params.lease;
  if (needed > lease.count - lease.used) {
    return ShortLease("diffkv_assign_pages", needed, lease);
  }
  for (int32_t head = 0; head < geometry.kv_heads; ++head) {
    for (int32_t tier = 0; tier < kDiffKvTiers; ++tier) {
      const int32_t pages = PagesHeld(geometry, params.layer, head, tier);
      for (int32_t page = PagesBefore(geometry, params.held, head, tier); page < pages; ++page) {
        DiffKvPageId(params.layer, head, tier, page) = lease.ids[lease.used++];
      }
    }
  }
  return absl::OkStatus();
}

absl::Status ReleaseDiffKvPages(const DiffKvReleasePagesParams& params) {
  if (absl::Status status = Validate(params); !status.ok()) {
    return status;
  }
  int32_t count = 0;
  for (int32_t head = 0; head < params.geometry.kv_heads; ++head) {
    for (int32_t tier = 0; tier < kDiffKvTiers; ++tier) {
      const int32_t pages = PagesHeld(params.geometry, params.layer, head, tier);
      for (int32_t page = 0; page < pages; ++page) {
        params.ids[count++] = DiffKvPageId(params.layer, head, tier, page);
      }
      DiffKvCount(params.layer, head, tier) = 0;
    }
  }
  *params.count = count;
  return absl::OkStatus();
}

void AppendUnswept(const DiffKvAppendParams& params) {
  for (int64_t r = 0; r < params.num_rows; ++r) {
    const DiffKvAppendRow& row = params.rows[r];
    for (int32_t head = 0; !row.sweep && head < params.pages.geometry.kv_heads; ++head) {
      row.actions[head] = AppendToDiffKv(DiffKvCount(row.layer, head, kDiffKvHigh));
    }
  }
}

absl::Status TakeDiffKvPages(const DiffKvAppendParams& params) {
  const DiffKvGeometry& geometry = params.pages.geometry;
  for (int64_t r = 0; r < params.num_rows; ++r) {
    if (absl::Status status = CheckRow(geometry, params.rows[r]); !status.ok()) {
      return status;
    }
  }
  for (int64_t r = 0; r < params.num_rows; ++r) {
    const DiffKvAppendRow& row = params.rows[r];
    for (int32_t head = 0; head < geometry.kv_heads; ++head) {
      for (int32_t tier = 0; tier < kDiffKvTiers; ++tier) {
        if (!TakesPage(geometry, row, head, tier)) continue;
        const int32_t page = PagesHeld(geometry, row.layer, head, tier);
        DiffKvPageId(row.layer, head, tier, page) = row.lease->ids[row.lease->used++];
        std::memset(
            DiffKvPageData(params.pages, row.layer, head, tier, page), 0, geometry.page_bytes());
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace baton::kernels
