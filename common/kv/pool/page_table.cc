#include "common/kv/pool/page_table.h"

#include <algorithm>
#include <span>
#include <utility>

#include "common/base/check.h"
#include "common/kv/pool/page_pool.h"

namespace baton::kv {

PageTable::PageTable(int32_t tables, int32_t stride) : tables_(tables), stride_(stride) {
  BATON_CHECK(tables >= 0 && stride >= 0);
  ids_.resize(static_cast<size_t>(tables) * static_cast<size_t>(stride), kNoPage);
}

PageTable::PageTable(PageTable&& other) noexcept { *this = std::move(other); }

PageTable& PageTable::operator=(PageTable&& other) noexcept {
  if (this == &other) {
    return *this;
  }
  BATON_CHECK(pages_ == 0);
  tables_ = std::exchange(other.tables_, 0);
  stride_ = std::exchange(other.stride_, 0);
  pages_ = std::exchange(other.pages_, 0);
  ids_ = std::exchange(other.ids_, {});
  return *this;
}

PageTable::~PageTable() { BATON_CHECK(pages_ == 0); }

std::span<const PageId> PageTable::table(int32_t table) const {
  BATON_CHECK(table >= 0 && table < tables_);
  return {ids_.data() + static_cast<size_t>(table) * static_cast<size_t>(stride_),
          static_cast<size_t>(stride_)};
}

void PageTable::Set(int32_t table, int32_t index, PageId id) {
  PageId& place = ids_[Index(table, index)];
  BATON_CHECK(place == kNoPage && id != kNoPage);
  place = id;
  ++pages_;
}

void PageTable::Resize(int32_t stride, PagePool& pool) {
  PageTable resized(tables_, stride);
  for (int32_t table = 0; table < tables_; ++table) {
    for (int32_t index = 0; index < std::min(stride, stride_); ++index) {
      if (PageId& id = ids_[Index(table, index)]; id != kNoPage) {
        resized.Set(table, index, std::exchange(id, kNoPage));
        --pages_;
      }
    }
  }
  ReleaseAll(pool);
  *this = std::move(resized);
}

void PageTable::ReleaseAll(PagePool& pool) {
  for (PageId& id : ids_) {
    if (id != kNoPage) {
      pool.Release(std::exchange(id, kNoPage));
      --pages_;
    }
  }
  BATON_CHECK(pages_ == 0);
}

size_t PageTable::Index(int32_t table, int32_t index) const {
  BATON_CHECK(table >= 0 && table < tables_ && index >= 0 && index < stride_);
  return static_cast<size_t>(table) * static_cast<size_t>(stride_) + static_cast<size_t>(index);
}

}  // namespace baton::kv
