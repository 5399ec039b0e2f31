#include <cstddef>
#include <cstdint>
#include <cstring>

#include "absl/status/status.h"

#include "kernels/core/exec_context.h"
#include "kernels/kv_format/dense.h"
#include "kernels/kv_format/diffkv.h"
#include "kernels/kv_format/diffkv_page.h"
#include "kernels/ops/diffkv_pages.h"
#include "kernels/ops/diffkv_params.h"
#include "kernels/ops/validate.h"
#include "kernels/reference/diffkv_token.h"
#include "kernels/reference/reference_kernels.h"

namespace baton::kernels::reference {
namespace {

int32_t Held(const DiffKvEncodeParams& params, int32_t head, int32_t tier) {
  return params.held == nullptr ? 0 : params.held[head * kDiffKvTiers + tier];
}

// Pages that no token was in.
void ClearPages(const DiffKvEncodeParams& params, int32_t head) {
  const DiffKvGeometry& geometry = params.pages.geometry;
  for (int32_t tier = 0; tier < kDiffKvTiers; ++tier) {
    const int32_t pages = geometry.pages_for(tier, DiffKvCount(params.layer, head, tier));
    for (int32_t page = geometry.pages_for(tier, Held(params, head, tier)); page < pages; ++page) {
      std::memset(
          DiffKvPageData(params.pages, params.layer, head, tier, page), 0, geometry.page_bytes());
    }
  }
}

void EncodeHead(const DiffKvEncodeParams& params, int32_t head) {
  const DensePageLayout& source = params.source.layout;
  int32_t used[kDiffKvTiers] = {Held(params, head, kDiffKvHigh), Held(params, head, kDiffKvLow)};
  const int64_t count = params.tokens - params.first_token;
  for (int64_t token = params.first_token; token < params.tokens; ++token) {
    const DiffKvClass token_class = params.classes[head * count + token - params.first_token];
    if (token_class == DiffKvClass::kPruned) continue;
    const int32_t tier = token_class == DiffKvClass::kHigh ? kDiffKvHigh : kDiffKvLow;
    const DiffKvPageLayout layout = params.pages.geometry.layout(tier);
    const int32_t slot = used[tier]++;
    const DiffKvPage page(
        layout,
        DiffKvPageData(params.pages, params.layer, head, tier, slot / layout.page_tokens()));
    const auto id = static_cast<size_t>(params.source_table[token / source.page_tokens]);
    const std::byte* dense = params.source.base + id * source.stride_bytes();
    const auto dense_slot = static_cast<int32_t>(token % source.page_tokens);
    const auto element = [&](size_t offset) {
      return [&source, data = dense + offset](int32_t i) {
        return LoadElement(data, source.dtype, static_cast<size_t>(i));
      };
    };
    WriteToken(page,
               slot % layout.page_tokens(),
               element(source.key_offset(head, dense_slot)),
               element(source.value_offset(head, dense_slot)),
               params.scores[head * params.score_stride + token - params.first_token],
               static_cast<int32_t>(token));
  }
}

}  // namespace

absl::Status DiffKvEncode(const ExecContext&, const DiffKvEncodeParams& params) {
  if (absl::Status status = Validate(params); !status.ok()) {
    return status;
  }
  for (int32_t head = 0; head < params.pages.geometry.kv_heads; ++head) {
    if (params.tokens > params.first_token) {
      ClearPages(params, head);
      EncodeHead(params, head);
    }
  }
  return absl::OkStatus();
}

}  // namespace baton::kernels::reference
