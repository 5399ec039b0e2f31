#include <algorithm>
#include <cstdint>

#include "absl/status/status.h"

#include "kernels/core/exec_context.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/isa_kernels.h"
#include "kernels/cpu/parallel.h"
#include "kernels/kv_format/diffkv.h"
#include "kernels/kv_format/diffkv_page.h"
#include "kernels/ops/diffkv_pages.h"
#include "kernels/ops/diffkv_params.h"
#include "kernels/ops/diffkv_policy.h"
#include "kernels/ops/validate.h"

namespace baton::kernels::cpu {
namespace {

// Mean score of one stored token, as least_mean has it; +inf when it does not compete.
float MeanOf(const DiffKvAppendRow& row, const DiffKvPage& page, int32_t slot) {
  const int32_t position = page.position(slot);
  const int32_t age = DiffKvAge(row.policy, position, row.position);
  return DiffKvCompetes(row.policy, position, row.position, age)
             ? page.score(slot) / static_cast<float>(age)
             : DiffKvVictim().mean;
}

// Looks through one tier. The vector code finds a page's least mean; its slot is looked up only
// when the page has the least so far.
void SurveyTier(const IsaKernels& isa,
                const DiffKvPages& pages,
                const DiffKvAppendRow& row,
                int32_t head,
                int32_t tier,
                DiffKvHeadState& state) {
  const DiffKvPageLayout layout = pages.geometry.layout(tier);
  const SurveyLimits limits = {.position = row.position,
                               .unobserved = row.policy.unobserved,
                               .unobserved_count = row.policy.unobserved_count,
                               .newest = row.position - row.policy.window,
                               .sinks = row.policy.sinks};
  const bool needs_candidate = tier == kDiffKvHigh && row.policy.rule == DiffKvRule::kPaper;
  DiffKvVictim& victim = state.victims[tier];
  for (int32_t first = 0; first < state.counts[tier]; first += layout.page_tokens()) {
    const DiffKvPage page(
        layout, DiffKvPageData(pages, row.layer, head, tier, first / layout.page_tokens()));
    const int32_t n = std::min(layout.page_tokens(), state.counts[tier] - first);
    const float least = isa.least_mean(&page.score(0), &page.position(0), n, limits);
    for (int32_t slot = 0; least < victim.mean && slot < n; ++slot) {
      if (MeanOf(row, page, slot) == least) {
        victim = {.mean = least, .slot = first + slot};
      }
    }
    for (int32_t slot = 0; needs_candidate && slot < n; ++slot) {
      if (page.position(slot) == row.position - row.policy.window &&
          MeanOf(row, page, slot) < DiffKvVictim().mean) {
        state.candidate = {.mean = MeanOf(row, page, slot), .slot = first + slot};
      }
    }
  }
}

DiffKvAction Decide(const IsaKernels& isa,
                    const DiffKvPages& pages,
                    const DiffKvAppendRow& row,
                    int32_t head) {
  DiffKvHeadState state;
  for (int32_t tier = 0; tier < kDiffKvTiers; ++tier) {
    state.counts[tier] = DiffKvCount(row.layer, head, tier);
  }
  for (int32_t tier = 0; tier < kDiffKvTiers; ++tier) {
    SurveyTier(isa, pages, row, head, tier, state);
  }
  return DecideDiffKv(row.policy, row.position, state);
}

// Stored tokens of the rows that sweep.
int64_t TokensOf(const DiffKvSweepParams& params) {
  int64_t tokens = 0;
  for (int64_t r = 0; r < params.num_rows; ++r) {
    const int32_t counts = params.pages.geometry.kv_heads * kDiffKvTiers;
    for (int32_t i = 0; params.rows[r].sweep && i < counts; ++i) {
      tokens += params.rows[r].layer.token_counts[i];
    }
  }
  return tokens;
}

}  // namespace

absl::Status DiffKvSweep(const IsaKernels& isa,
                         const ExecContext& context,
                         const DiffKvSweepParams& params) {
  if (absl::Status status = Validate(params); !status.ok()) {
    return status;
  }
  const int32_t kv_heads = params.pages.geometry.kv_heads;
  const int64_t tasks = params.num_rows * kv_heads;
  ParallelFor(context, tasks, TokensOf(params) < kSerialElements, [&](int64_t index, int) {
    const DiffKvAppendRow& row = params.rows[index / kv_heads];
    const auto head = static_cast<int32_t>(index % kv_heads);
    if (row.sweep) row.actions[head] = Decide(isa, params.pages, row, head);
  });
  return absl::OkStatus();
}

}  // namespace baton::kernels::cpu
