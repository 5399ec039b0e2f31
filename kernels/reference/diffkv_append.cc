#include <cstdint>

#include "absl/status/status.h"

#include "kernels/core/exec_context.h"
#include "kernels/kv_format/diffkv.h"
#include "kernels/kv_format/diffkv_page.h"
#include "kernels/ops/activations.h"
#include "kernels/ops/diffkv_pages.h"
#include "kernels/ops/diffkv_params.h"
#include "kernels/ops/validate.h"
#include "kernels/reference/diffkv_token.h"
#include "kernels/reference/reference_kernels.h"

namespace baton::kernels::reference {
namespace {

void WriteRow(const DiffKvAppendParams& params, const DiffKvAppendRow& row, int32_t head) {
  const DiffKvPages& pages = params.pages;
  const DiffKvAction& action = row.actions[head];
  const auto page_of = [&](int32_t tier) {
    return DiffKvPage(pages.geometry.layout(tier), DiffKvPageData(pages, action.pages[tier]));
  };
  const DiffKvPage high = page_of(kDiffKvHigh);
  const int32_t slot = action.high_slot % high.layout().page_tokens();
  if (action.demoted_to >= 0) {
    const DiffKvPage low = page_of(kDiffKvLow);
    DemoteToken(high, slot, low, action.demoted_to % low.layout().page_tokens());
  }
  const int64_t offset = row.row * params.stride + int64_t{head} * pages.geometry.head_dim;
  WriteToken(
      high,
      slot,
      [&](int32_t i) { return Floats(params.k)[offset + i]; },
      [&](int32_t i) { return Floats(params.v)[offset + i]; },
      0.0f,
      row.position);
}

}  // namespace

absl::Status DiffKvAppend(const ExecContext&, const DiffKvAppendParams& params) {
  if (absl::Status status = Validate(params); !status.ok()) {
    return status;
  }
  const int32_t kv_heads = params.pages.geometry.kv_heads;
  for (int64_t r = 0; r < params.num_rows; ++r) {
    for (int32_t head = 0; head < kv_heads; ++head) {
      WriteRow(params, params.rows[r], head);
    }
  }
  return absl::OkStatus();
}

}  // namespace baton::kernels::reference
