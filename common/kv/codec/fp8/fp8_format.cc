#include "common/kv/codec/fp8/fp8_format.h"

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "common/base/status_macros.h"
#include "common/kv/codec/block_cache.h"
#include "common/kv/codec/codec_context.h"
#include "common/kv/codec/encoded_format.h"
#include "common/kv/codec/encoded_kv.h"
#include "common/kv/codec/fp8/fp8_sequence.h"
#include "common/kv/codec/policy_params.h"
#include "common/kv/pool/page_pool.h"
#include "kernels/core/dtype.h"
#include "kernels/kv_format/dense.h"

namespace baton::kv {

absl::StatusOr<std::unique_ptr<Fp8Format>> Fp8Format::Create(const CodecContext& context,
                                                             int64_t pool_bytes) {
  const kernels::DensePageLayout layout = {.page_tokens = kPageTokens,
                                           .kv_heads = context.dimensions.kv_heads,
                                           .head_dim = context.dimensions.head_dim,
                                           .dtype = kernels::DType::kF8E4M3};
  BATON_ASSIGN_OR_RETURN(
      auto pool, PagePool::Create(pool_bytes, layout.stride_bytes(), context.pool_memory()));
  return std::unique_ptr<Fp8Format>(new Fp8Format(context, std::move(pool), layout));
}

int64_t Fp8Format::Pages(int64_t tokens) const {
  return int64_t{codec_.context().dimensions.layers} * codec_.layout().pages_for(tokens);
}

absl::Status Fp8Format::Check(const KvResidentPolicy& /*policy*/,
                              int64_t prompt_tokens,
                              int64_t max_tokens,
                              int32_t sequences) const {
  const int64_t pages = sequences * Pages(prompt_tokens + max_tokens);
  if (pages > pool_->pages_total()) {
    return absl::InvalidArgumentError(absl::StrCat("EXCEEDS_CAPACITY: the request needs ",
                                                   pages,
                                                   " fp8 pages; the pool has ",
                                                   pool_->pages_total()));
  }
  return absl::OkStatus();
}

WindowShape Fp8Format::window(const KvResidentPolicy& /*policy*/, int64_t prompt_tokens) const {
  return {.pages_per_layer = codec_.layout().pages_for(prompt_tokens),
          .page_bytes = static_cast<int64_t>(codec_.layout().page_bytes())};
}

std::unique_ptr<EncodedKv> Fp8Format::Allocate(const KvResidentPolicy& /*policy*/,
                                               int64_t prompt_tokens,
                                               int64_t max_tokens) {
  std::optional<std::vector<PageId>> ids = pool_->Allocate(Pages(prompt_tokens + max_tokens));
  if (!ids.has_value()) {
    return nullptr;
  }
  BlockCache::Block table;
  if (!on_host()) {
    absl::StatusOr<BlockCache::Block> taken = blocks_.Take(ids->size() * sizeof(PageId));
    if (!taken.ok()) {
      pool_->ReleaseAll(*ids);
      return nullptr;
    }
    table = *std::move(taken);
  }
  return std::make_unique<Fp8Sequence>(
      codec_, prompt_tokens, max_tokens, *std::move(ids), std::move(table));
}

bool Fp8Format::Extend(EncodedKv& sequence, int64_t prompt_tokens, int64_t max_tokens) {
  return static_cast<Fp8Sequence&>(sequence).Extend(prompt_tokens, max_tokens);
}

PoolBytes Fp8Format::pool() const {
  const auto stride = static_cast<int64_t>(pool_->stride_bytes());
  return {.total = pool_->pages_total() * stride, .free = pool_->pages_free() * stride};
}

}  // namespace baton::kv
