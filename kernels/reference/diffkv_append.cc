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

DiffKvPage PageOf(
    const DiffKvPages& pages, const DiffKvLayer& layer, int32_t head, int32_t tier, int32_t slot) {
  const DiffKvPageLayout layout = pages.geometry.layout(tier);
  return {layout, DiffKvPageData(pages, layer, head, tier, slot / layout.page_tokens())};
}

void WriteRow(const DiffKvAppendParams& params, const DiffKvAppendRow& row, int32_t head) {
  const DiffKvPages& pages = params.pages;
  const DiffKvAction& action = row.actions[head];
  const int32_t high_tokens = pages.geometry.layout(kDiffKvHigh).page_tokens();
  const int32_t low_tokens = pages.geometry.layout(kDiffKvLow).page_tokens();
  const DiffKvPage high = PageOf(pages, row.layer, head, kDiffKvHigh, action.high_slot);
  if (action.demoted_to >= 0) {
    DemoteToken(high,
                action.high_slot % high_tokens,
                PageOf(pages, row.layer, head, kDiffKvLow, action.demoted_to),
                action.demoted_to % low_tokens);
  }
  const int64_t offset = row.row * params.stride + int64_t{head} * pages.geometry.head_dim;
  WriteToken(
      high,
      action.high_slot % high_tokens,
      [&](int32_t i) { return Floats(params.k)[offset + i]; },
      [&](int32_t i) { return Floats(params.v)[offset + i]; },
      0.0f,
      row.position);
  DiffKvCount(row.layer, head, kDiffKvHigh) += action.appended ? 1 : 0;
  DiffKvCount(row.layer, head, kDiffKvLow) += action.low_appended ? 1 : 0;
}

}  // namespace

absl::Status DiffKvAppend(const ExecContext&, const DiffKvAppendParams& params) {
  if (absl::Status status = Validate(params); !status.ok()) {
    return status;
  }
  const int32_t kv_heads = params.pages.geometry.kv_heads;
  AppendUnswept(params);
  if (absl::Status status = TakeDiffKvPages(params); !status.ok()) {
    return status;
  }
  for (int64_t r = 0; r < params.num_rows; ++r) {
    for (int32_t head = 0; head < kv_heads; ++head) {
      WriteRow(params, params.rows[r], head);
    }
  }
  return absl::OkStatus();
}

}  // namespace baton::kernels::reference
