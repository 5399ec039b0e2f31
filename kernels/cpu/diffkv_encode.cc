#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "absl/status/status.h"

#include "kernels/core/dtype.h"
#include "kernels/core/exec_context.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/diffkv_token.h"
#include "kernels/cpu/isa_kernels.h"
#include "kernels/cpu/parallel.h"
#include "kernels/kv_format/dense.h"
#include "kernels/kv_format/diffkv.h"
#include "kernels/kv_format/diffkv_page.h"
#include "kernels/ops/diffkv_pages.h"
#include "kernels/ops/diffkv_params.h"
#include "kernels/ops/validate.h"

namespace baton::kernels::cpu {
namespace {

// Pages of one tier of one head that a task writes, so that no two tasks share a byte.
constexpr int32_t kTaskPages = 16;

// One token's keys or values as fp32, widened into `room` if need be.
const float* Widened(const IsaKernels& isa,
                     const DensePageLayout& layout,
                     const std::byte* data,
                     float* room) {
  if (layout.dtype == DType::kF32) {
    return reinterpret_cast<const float*>(data);
  }
  isa.widen(reinterpret_cast<const uint16_t*>(data), layout.head_dim, room);
  return room;
}

void EncodeToken(const IsaKernels& isa,
                 const DiffKvEncodeParams& params,
                 int32_t head,
                 int64_t token,
                 const DiffKvPage& page,
                 int32_t slot) {
  const DensePageLayout& source = params.source.layout;
  const auto id = static_cast<size_t>(params.source_table[token / source.page_tokens]);
  const std::byte* dense = params.source.base + id * source.stride_bytes();
  const auto dense_slot = static_cast<int32_t>(token % source.page_tokens);
  float key[kMaxDiffKvHeadDim];
  float value[kMaxDiffKvHeadDim];
  WriteToken(isa,
             page,
             slot,
             Widened(isa, source, dense + source.key_offset(head, dense_slot), key),
             Widened(isa, source, dense + source.value_offset(head, dense_slot), value),
             params.scores[head * params.score_stride + token - params.first_token],
             static_cast<int32_t>(token));
}

// Writes the new slots of kTaskPages pages of a tier from `first_page` on: the tokens of its class
// whose rank, counted from the tokens held, falls into them.
void EncodePages(const IsaKernels& isa,
                 const DiffKvEncodeParams& params,
                 int32_t head,
                 int32_t tier,
                 int32_t first_page) {
  const DiffKvPageLayout layout = params.pages.geometry.layout(tier);
  const DiffKvGeometry& geometry = params.pages.geometry;
  const int32_t pages = geometry.pages_for(tier, DiffKvCount(params.layer, head, tier));
  const int32_t held = params.held == nullptr ? 0 : params.held[head * kDiffKvTiers + tier];
  const int32_t end_page = std::min(first_page + kTaskPages, pages);
  for (int32_t page = std::max(first_page, geometry.pages_for(tier, held)); page < end_page;
       ++page) {
    std::memset(
        DiffKvPageData(params.pages, params.layer, head, tier, page), 0, layout.page_bytes());
  }
  const DiffKvClass wanted = tier == kDiffKvHigh ? DiffKvClass::kHigh : DiffKvClass::kLow;
  const DiffKvClass* classes =
      params.classes + head * (params.tokens - params.first_token) - params.first_token;
  const int32_t first_rank = first_page * layout.page_tokens();
  const int32_t end_rank = end_page * layout.page_tokens();
  int32_t rank = held;
  for (int64_t token = params.first_token; token < params.tokens && rank < end_rank; ++token) {
    if (classes[token] != wanted) continue;
    if (rank >= first_rank) {
      const int32_t index = rank / layout.page_tokens();
      const DiffKvPage page(layout, DiffKvPageData(params.pages, params.layer, head, tier, index));
      EncodeToken(isa, params, head, token, page, rank % layout.page_tokens());
    }
    ++rank;
  }
}

}  // namespace

absl::Status DiffKvEncode(const IsaKernels& isa,
                          const ExecContext& context,
                          const DiffKvEncodeParams& params) {
  if (absl::Status status = Validate(params); !status.ok()) {
    return status;
  }
  if (params.tokens == params.first_token) {
    return absl::OkStatus();
  }
  const DiffKvGeometry& geometry = params.pages.geometry;
  int32_t most = 1;  // tasks of a head's tier
  for (int32_t head = 0; head < geometry.kv_heads; ++head) {
    for (int32_t tier = 0; tier < kDiffKvTiers; ++tier) {
      const int32_t pages = geometry.pages_for(tier, DiffKvCount(params.layer, head, tier));
      most = std::max(most, (pages + kTaskPages - 1) / kTaskPages);
    }
  }
  const int64_t tasks = int64_t{geometry.kv_heads} * kDiffKvTiers * most;
  const bool serial = (params.tokens - params.first_token) * geometry.kv_heads * geometry.head_dim <
                      kSerialElements;
  ParallelFor(context, tasks, serial, [&](int64_t index, int) {
    const auto tier = static_cast<int32_t>(index / most % kDiffKvTiers);
    const auto head = static_cast<int32_t>(index / most / kDiffKvTiers);
    const auto first_page = static_cast<int32_t>(index % most) * kTaskPages;
    if (first_page < geometry.pages_for(tier, DiffKvCount(params.layer, head, tier))) {
      EncodePages(isa, params, head, tier, first_page);
    }
  });
  return absl::OkStatus();
}

}  // namespace baton::kernels::cpu
