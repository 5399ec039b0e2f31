// Pages of a pool that the next step copies.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "common/kv/pool/page_pool.h"

namespace baton::kv {

// Whole pages, `stride_bytes` of each, inside one pool: what answers to one prompt can't share. The
// engine thread says which, the executor copies them before the step's rows.
struct PageCopies {
  PageCopies(std::byte* pool_base, size_t pool_stride_bytes)
      : base(pool_base), stride_bytes(pool_stride_bytes) {}

  void Add(std::span<const PageId> from, std::span<const PageId> to) {
    sources.insert(sources.end(), from.begin(), from.end());
    targets.insert(targets.end(), to.begin(), to.end());
  }

  std::byte* base;  // of the pool
  size_t stride_bytes;
  std::vector<PageId> sources;
  std::vector<PageId> targets;  // as many
};

}  // namespace baton::kv
