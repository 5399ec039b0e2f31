#include "common/kv/codec/shadowkv/shadowkv_call.h"

#include <algorithm>
#include <cstdint>

#include "kernels/core/round_up.h"
#include "kernels/kv_format/shadowkv.h"
#include "kernels/ops/shadowkv_params.h"

namespace baton::kv {

void ShadowKvCallSizes::Add(const kernels::ShadowKvPromptLayout& layout,
                            int32_t position,
                            bool cached) {
  const kernels::ShadowKvConfig& config = layout.config;
  const int64_t tokens = int64_t{position} + 1;
  const int64_t coded = kernels::ShadowKvTailLayout(layout, 0).CodedTokensAt(tokens);
  const int64_t exact = layout.static_chunks * config.chunk_tokens + tokens - coded;
  const int32_t rank = kernels::ShadowKvChunkKeyRank(config);
  const bool first = bounds.kv_heads == 0;
  bounds.chunk_key_rank = first || bounds.chunk_key_rank == rank ? rank : 0;
  bounds.dtype = config.dtype;
  bounds.kv_heads = config.kv_heads;
  bounds.head_dim = config.head_dim;
  bounds.max_chunks = std::max(bounds.max_chunks, coded / config.chunk_tokens);
  bounds.max_budget_tokens =
      std::max(bounds.max_budget_tokens, config.budget_chunks() * config.chunk_tokens);
  bounds.max_exact_tokens =
      std::max(bounds.max_exact_tokens, kernels::RoundUp(exact, kBoundTokens));
  bounds.cached = bounds.cached && cached;
  bounds.caches_values = bounds.caches_values || (cached && config.values_apart);
  chunk_ids_stride = std::max(chunk_ids_stride, config.budget_chunks());
  cluster_stride = std::max<int64_t>(cluster_stride, config.value_clusters);
}

}  // namespace baton::kv
