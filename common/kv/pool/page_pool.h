// The KV page pool of a worker: one flat arena of equal pages with reference counts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/statusor.h"

#include "kernels/core/memory.h"

namespace baton::kv {

// Names a page of the pool; page `id` starts at base() + id * stride_bytes(). Ids are unique over
// all layers: a page belongs to one (sequence, layer), so pages need no per-layer pools.
using PageId = int32_t;
inline constexpr PageId kNoPage = -1;

// Counters for gauges and tests.
struct PagePoolStats {
  int64_t pages_total = 0;
  int64_t pages_free = 0;
  int64_t allocations = 0;  // pages ever handed out
  int64_t refusals = 0;     // Allocate calls that found too few pages
};

// The pool knows that pages exist and how large they are, never what their bytes mean. Bookkeeping
// belongs to the engine thread and is not thread-safe; base(), page() and Pieces() only compute
// addresses and may be used from any thread that was handed a page. A page is free when its last
// reference is released; releasing a free page, or any unknown id, is a broken invariant and ends
// the process.
//
// Free pages are bits of a map, and allocation goes on behind where the last one ended: ids come in
// ascending order, in runs of neighbours as long as there are, so that what is copied of a sequence
// is few pieces however many sequences came and went (ADR 0022).
class PagePool {
 public:
  // As many pages of `stride_bytes` as fit in `pool_bytes`. kInvalidArgument when not one fits,
  // when a size is not positive, or when the stride is not a multiple of the alignment of pages
  // (64). kResourceExhausted when `space`, the back end's memory, has not so much.
  static absl::StatusOr<std::unique_ptr<PagePool>> Create(
      int64_t pool_bytes, size_t stride_bytes, kernels::MemorySpace& space = kernels::HostMemory());

  PagePool(const PagePool&) = delete;
  PagePool& operator=(const PagePool&) = delete;

  // `count` pages with one reference each, or nothing at all when fewer are free. Running out is
  // normal, not an error. The bytes are whatever the last owner left.
  std::optional<std::vector<PageId>> Allocate(int64_t count);
  // One more owner of an allocated page.
  void AddReference(PageId id);
  // One owner less.
  void Release(PageId id);
  void ReleaseAll(std::span<const PageId> ids);

  // 0 for a free page.
  int32_t references(PageId id) const;
  int64_t pages_total() const { return static_cast<int64_t>(references_.size()); }
  int64_t pages_free() const { return pages_free_; }
  PagePoolStats stats() const;

  // Where ops find the pages.
  std::byte* base() const { return arena_.data(); }
  size_t stride_bytes() const { return stride_bytes_; }
  // All stride bytes of a page, to be looked at where the pool is on the host.
  std::span<std::byte> page(PageId id);
  // The first `page_bytes` of each page, in as few pieces as they lie.
  std::vector<std::span<std::byte>> Pieces(std::span<const PageId> ids, size_t page_bytes);

 private:
  PagePool(kernels::Memory arena, size_t stride_bytes, int64_t pages);
  size_t CheckedIndex(PageId id) const;
  void TakeFromWord(size_t count, std::vector<PageId>& ids);

  kernels::Memory arena_;
  size_t stride_bytes_;
  std::vector<int32_t> references_;  // [pages_total]
  std::vector<uint64_t> free_;       // bit i % 64 of word i / 64: page i is free
  size_t next_ = 0;                  // the word where the next allocation begins to look
  int64_t pages_free_ = 0;
  int64_t allocations_ = 0;
  int64_t refusals_ = 0;
};

}  // namespace baton::kv
