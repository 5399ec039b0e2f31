#include "common/kv/codec/diffkv/coded_pages.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"

#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/kv/codec/encoded_kv.h"
#include "common/kv/pool/page_pool.h"
#include "kernels/core/landing_memory.h"
#include "kernels/core/memory.h"
#include "kernels/kv_format/diffkv.h"

namespace baton::kv {

absl::StatusOr<EncodedLayer> DiffKvCodedPages::Next(const int32_t* token_counts) {
  std::vector<int32_t> counts(static_cast<size_t>(codec_.geometry().kv_heads) *
                              kernels::kDiffKvTiers);
  BATON_RETURN_IF_ERROR(codec_.context().exec.memory->landing().Read(
      std::as_writable_bytes(std::span(counts)), reinterpret_cast<const std::byte*>(token_counts)));
  const auto pages = static_cast<size_t>(codec_.PagesOf(counts));
  BATON_CHECK(pages <= lease_ids_.size() - taken_);
  const std::span<const PageId> ids = std::span(lease_ids_).subspan(taken_, pages);
  taken_ += pages;
  return codec_.LayerOf(ids);
}

}  // namespace baton::kv
