#include "kernels/ops/diffkv_pages.h"

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
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
  return DiffKvGrows(row.actions[head], tier) &&
         DiffKvCount(row.layer, head, tier) % DiffKvPageTokens(geometry.tiers[tier]) == 0;
}

// Rows that do not sweep: behind the other high tokens of every head.
void AppendUnswept(const DiffKvGeometry& geometry, const DiffKvAppendRow& row) {
  for (int32_t head = 0; !row.sweep && head < geometry.kv_heads; ++head) {
    row.actions[head] = AppendToDiffKv(DiffKvCount(row.layer, head, kDiffKvHigh));
  }
}

// The row's new pages, or an error when a head has no columns for them.
absl::StatusOr<int32_t> NewPages(const DiffKvGeometry& geometry, const DiffKvAppendRow& row) {
  int32_t taken = 0;
  for (int32_t head = 0; head < geometry.kv_heads; ++head) {
    int32_t pages = 0;
    for (int32_t tier = 0; tier < kDiffKvTiers; ++tier) {
      const int32_t more = TakesPage(geometry, row, head, tier) ? 1 : 0;
      pages += PagesHeld(geometry, row.layer, head, tier) + more;
      taken += more;
    }
    if (pages > row.layer.columns) {
      return FullTable("diffkv_take_pages", pages, row.layer.columns);
    }
  }
  return taken;
}

// Decides what is to be decided of a sequence, and checks that its new pages can be had.
absl::Status PlanSequence(const DiffKvTakePagesParams& params, int64_t sequence) {
  int32_t needed = 0;
  for (int64_t layer = 0; layer < params.layers; ++layer) {
    const DiffKvAppendRow& row = params.rows[layer * params.sequences + sequence];
    AppendUnswept(params.pages.geometry, row);
    const absl::StatusOr<int32_t> pages = NewPages(params.pages.geometry, row);
    if (!pages.ok()) {
      return pages.status();
    }
    needed += *pages;
  }
  const DiffKvLease& lease = *params.rows[sequence].lease;
  return needed <= lease.count - lease.used ? absl::OkStatus()
                                            : ShortLease("diffkv_take_pages", needed, lease);
}

// Finds the page of the slot that a head's token takes in a tier, and counts the token.
void TakePage(const DiffKvPages& pages, const DiffKvAppendRow& row, int32_t head, int32_t tier) {
  DiffKvAction& action = row.actions[head];
  const int32_t slot = DiffKvSlot(action, tier);
  if (slot < 0) return;
  int32_t& id =
      DiffKvPageId(row.layer, head, tier, slot / DiffKvPageTokens(pages.geometry.tiers[tier]));
  if (TakesPage(pages.geometry, row, head, tier)) {
    id = row.lease->ids[row.lease->used++];
    std::memset(DiffKvPageData(pages, id), 0, pages.geometry.page_bytes());
  }
  action.pages[tier] = id;
  DiffKvCount(row.layer, head, tier) += DiffKvGrows(action, tier) ? 1 : 0;
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

absl::Status TakeDiffKvPages(const DiffKvTakePagesParams& params) {
  if (absl::Status status = Validate(params); !status.ok()) {
    return status;
  }
  for (int64_t sequence = 0; sequence < params.sequences; ++sequence) {
    if (absl::Status status = PlanSequence(params, sequence); !status.ok()) {
      return status;
    }
  }
  for (int64_t row = 0; row < params.layers * params.sequences; ++row) {
    for (int32_t head = 0; head < params.pages.geometry.kv_heads; ++head) {
      for (int32_t tier = 0; tier < kDiffKvTiers; ++tier) {
        TakePage(params.pages, params.rows[row], head, tier);
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace baton::kernels
