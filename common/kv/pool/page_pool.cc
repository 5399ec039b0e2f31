#include "common/kv/pool/page_pool.h"

#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

#include "common/base/check.h"
#include "common/base/pieces.h"
#include "kernels/core/buffer.h"
#include "kernels/core/memory.h"

namespace baton::kv {
namespace {

constexpr size_t kWordPages = 64;  // bits of a word

}  // namespace

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
    : arena_(std::move(arena)), stride_bytes_(stride_bytes), pages_free_(pages) {
  const auto count = static_cast<size_t>(pages);
  references_.resize(count, 0);
  free_.assign((count + kWordPages - 1) / kWordPages, ~uint64_t{0});
  if (count % kWordPages != 0) {
    free_.back() = (uint64_t{1} << (count % kWordPages)) - 1;
  }
}

std::optional<std::vector<PageId>> PagePool::Allocate(int64_t count) {
  BATON_CHECK(count >= 0);
  if (count > pages_free()) {
    ++refusals_;
    return std::nullopt;
  }
  std::vector<PageId> ids;
  ids.reserve(static_cast<size_t>(count));
  while (std::cmp_less(ids.size(), count)) {
    TakeFromWord(static_cast<size_t>(count), ids);
  }
  pages_free_ -= count;
  allocations_ += count;
  return ids;
}

// Until the word is empty, when the next one is due, or there are `count` ids.
void PagePool::TakeFromWord(size_t count, std::vector<PageId>& ids) {
  uint64_t& word = free_[next_];
  while (word != 0 && ids.size() < count) {
    const size_t page = next_ * kWordPages + static_cast<size_t>(std::countr_zero(word));
    word &= word - 1;
    references_[page] = 1;
    ids.push_back(static_cast<PageId>(page));
  }
  if (word == 0) {
    next_ = next_ + 1 == free_.size() ? 0 : next_ + 1;
  }
}

void PagePool::AddReference(PageId id) {
  int32_t& references = references_[CheckedIndex(id)];
  BATON_CHECK(references > 0);
  ++references;
}

void PagePool::Release(PageId id) {
  const size_t page = CheckedIndex(id);
  BATON_CHECK(references_[page] > 0);
  if (--references_[page] == 0) {
    free_[page / kWordPages] |= uint64_t{1} << (page % kWordPages);
    ++pages_free_;
  }
}

void PagePool::ReleaseAll(std::span<const PageId> ids) {
  for (const PageId id : ids) {
    Release(id);
  }
}

int32_t PagePool::references(PageId id) const { return references_[CheckedIndex(id)]; }

PagePoolStats PagePool::stats() const {
  return {.pages_total = pages_total(),
          .pages_free = pages_free(),
          .allocations = allocations_,
          .refusals = refusals_};
}

std::span<std::byte> PagePool::page(PageId id) {
  return {arena_.data() + CheckedIndex(id) * stride_bytes_, stride_bytes_};
}

std::vector<std::span<std::byte>> PagePool::Pieces(std::span<const PageId> ids, size_t page_bytes) {
  std::vector<std::span<std::byte>> pieces;
  for (const PageId id : ids) {
    AddAdjacent(page(id).first(page_bytes), pieces);
  }
  return pieces;
}

size_t PagePool::CheckedIndex(PageId id) const {
  BATON_CHECK(id >= 0 && static_cast<size_t>(id) < references_.size());
  return static_cast<size_t>(id);
}

}  // namespace baton::kv
