#include <cstdint>

#include "absl/status/status.h"

#include "kernels/core/exec_context.h"
#include "kernels/kv_format/diffkv.h"
#include "kernels/kv_format/diffkv_page.h"
#include "kernels/ops/diffkv_pages.h"
#include "kernels/ops/diffkv_params.h"
#include "kernels/ops/diffkv_policy.h"
#include "kernels/ops/validate.h"
#include "kernels/reference/reference_kernels.h"

namespace baton::kernels::reference {
namespace {

// Counts, victims and candidate of one head, tokens by slot.
DiffKvHeadState Survey(const DiffKvPages& pages, const DiffKvAppendRow& row, int32_t head) {
  DiffKvHeadState state;
  for (int32_t tier = 0; tier < kDiffKvTiers; ++tier) {
    state.counts[tier] = DiffKvCount(row.layer, head, tier);
    const int32_t page_tokens = pages.geometry.layout(tier).page_tokens();
    for (int32_t slot = 0; slot < state.counts[tier]; ++slot) {
      const DiffKvPage page(pages.geometry.layout(tier),
                            DiffKvPageData(pages, row.layer, head, tier, slot / page_tokens));
      const int32_t position = page.position(slot % page_tokens);
      const int32_t age = DiffKvAge(row.policy, position, row.position);
      if (!DiffKvCompetes(row.policy, position, row.position, age)) continue;
      const float mean = page.score(slot % page_tokens) / static_cast<float>(age);
      if (mean < state.victims[tier].mean) {
        state.victims[tier] = {.mean = mean, .slot = slot};
      }
      if (tier == kDiffKvHigh && position == row.position - row.policy.window) {
        state.candidate = {.mean = mean, .slot = slot};
      }
    }
  }
  return state;
}

}  // namespace

absl::Status DiffKvSweep(const ExecContext&, const DiffKvSweepParams& params) {
  if (absl::Status status = Validate(params); !status.ok()) {
    return status;
  }
  for (int64_t r = 0; r < params.num_rows; ++r) {
    const DiffKvAppendRow& row = params.rows[r];
    for (int32_t head = 0; row.sweep && head < params.pages.geometry.kv_heads; ++head) {
      const DiffKvHeadState state = Survey(params.pages, row, head);
      row.actions[head] = DecideDiffKv(row.policy, row.position, state);
    }
  }
  return absl::OkStatus();
}

}  // namespace baton::kernels::reference
