#include "common/kv/pool/page_pool.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

#include "common/base/check.h"
#include "kernels/core/buffer.h"
#include "kernels/core/memory.h"

namespace baton::kv {

absl::StatusOr<std::unique_ptr<PagePool>> PagePool::Create(int64_t pool_bytes,
                                                           size_t stride_bytes,
                                                           kernels::MemorySpace& space) {
  if (stride_bytes == 0 || stride_bytes % kernels::Buffer::kAlignment != 0 || pool_bytes <= 0) {
    return absl::InvalidArgumentError(absl::StrCat("KV pool of ",
                                                   pool_bytes,
                                                   " bytes with pages of ",
                                                   stride_bytes,
                                                   " bytes: both must be positive and pages a "
                                                   "multiple of 64 bytes"));
  }
  const size_t pages = static_cast<size_t>(pool_bytes) / stride_bytes;
  if (pages == 0 || pages > static_cast<size_t>(std::numeric_limits<PageId>::max())) {
    return absl::InvalidArgumentError(absl::StrCat("KV pool of ",
                                                   pool_bytes,
                                                   " bytes holds ",
                                                   pages,
                                                   " pages of ",
                                                   stride_bytes,
                                                   " bytes; it must hold 1 to 2^31 - 1 pages"));
  }
  absl::StatusOr<kernels::Memory> arena = space.Allocate(pages * stride_bytes);
  if (!arena.ok()) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no memory for a KV pool of ", pool_bytes, " bytes; ask for a smaller one"));
  }
  return std::unique_ptr<PagePool>(
      new PagePool(*std::move(arena), stride_bytes, static_cast<int64_t>(pages)));
}

PagePool::PagePool(kernels::Memory arena, size_t stride_bytes, int64_t pages)
    : arena_(std::move(arena)), stride_bytes_(stride_bytes) {
  references_.resize(static_cast<size_t>(pages), 0);
  ring_.resize(static_cast<size_t>(pages));
  std::iota(ring_.begin(), ring_.end(), PageId{0});
  tail_ = static_cast<uint64_t>(pages);
}

std::optional<std::vector<PageId>> PagePool::Allocate(int64_t count) {
  BATON_CHECK(count >= 0);
  if (count > pages_free()) {
    ++refusals_;
    return std::nullopt;
  }
  const auto begin = static_cast<ptrdiff_t>(head_ % ring_.size());
  const auto before_end = std::min<ptrdiff_t>(count, std::ssize(ring_) - begin);
  std::vector<PageId> ids(ring_.begin() + begin, ring_.begin() + begin + before_end);
  ids.insert(ids.end(), ring_.begin(), ring_.begin() + (count - before_end));
  head_ += static_cast<uint64_t>(count);
  for (const PageId id : ids) {
    references_[static_cast<size_t>(id)] = 1;
  }
  return ids;
}

void PagePool::AddReference(PageId id) {
  int32_t& references = references_[CheckedIndex(id)];
  BATON_CHECK(references > 0);
  ++references;
}

void PagePool::Release(PageId id) { ReleaseAll({&id, 1}); }

// A prompt has a hundred thousand pages, and a division takes as long as all else here.
void PagePool::ReleaseAll(std::span<const PageId> ids) {
  size_t place = tail_ % ring_.size();
  for (const PageId id : ids) {
    int32_t& references = references_[CheckedIndex(id)];
    BATON_CHECK(references > 0);
    if (--references == 0) {
      ring_[place] = id;
      ++tail_;
      place = place + 1 == ring_.size() ? 0 : place + 1;
    }
  }
}

int32_t PagePool::references(PageId id) const { return references_[CheckedIndex(id)]; }

PagePoolStats PagePool::stats() const {
  return {.pages_total = pages_total(),
          .pages_free = pages_free(),
          .allocations = static_cast<int64_t>(head_),
          .refusals = refusals_};
}

std::span<std::byte> PagePool::page(PageId id) {
  return {arena_.data() + CheckedIndex(id) * stride_bytes_, stride_bytes_};
}

size_t PagePool::CheckedIndex(PageId id) const {
  BATON_CHECK(id >= 0 && static_cast<size_t>(id) < references_.size());
  return static_cast<size_t>(id);
}

}  // namespace baton::kv
