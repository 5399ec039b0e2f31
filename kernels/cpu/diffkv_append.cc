#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"

#include "kernels/core/exec_context.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/diffkv_token.h"
#include "kernels/cpu/isa_kernels.h"
#include "kernels/cpu/parallel.h"
#include "kernels/kv_format/diffkv.h"
#include "kernels/kv_format/diffkv_page.h"
#include "kernels/ops/activations.h"
#include "kernels/ops/diffkv_pages.h"
#include "kernels/ops/diffkv_params.h"
#include "kernels/ops/validate.h"

namespace baton::kernels::cpu {
namespace {

void WriteRow(const IsaKernels& isa,
              const DiffKvAppendParams& params,
              const DiffKvAppendRow& row,
              int32_t head) {
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
      isa, high, slot, Floats(params.k) + offset, Floats(params.v) + offset, 0.0f, row.position);
}

}  // namespace

absl::Status DiffKvAppend(const IsaKernels& isa,
                          const ExecContext& context,
                          const DiffKvAppendParams& params) {
  if (absl::Status status = Validate(params); !status.ok()) {
    return status;
  }
  if (params.num_rows == 0) {
    return absl::OkStatus();
  }
  const int32_t kv_heads = params.pages.geometry.kv_heads;
  const int64_t tasks = params.num_rows * kv_heads;
  const bool serial = tasks * params.pages.geometry.head_dim < kSerialElements / 8;
  ParallelFor(context, tasks, serial, [&](int64_t index, int) {
    WriteRow(isa, params, params.rows[index / kv_heads], static_cast<int32_t>(index % kv_heads));
  });
  return absl::OkStatus();
}

}  // namespace baton::kernels::cpu
