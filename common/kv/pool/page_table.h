// The pages of one sequence.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/kv/pool/page_pool.h"

namespace baton::kv {

// Page ids [tables][stride] in token order. The format says how many tables a sequence has: one per
// stored KV layer for dense, one per (layer, KV head) for formats that page heads separately. Kept
// as one array because kernels take a table as (pointer, stride).
//
// The table owns one reference of every page in it, given back by ReleaseAll; it can't do so by
// itself, because the pool belongs to the engine thread. Movable; not thread-safe, but const access
// is safe from several threads (the executor reads tables while a step runs).
class PageTable {
 public:
  PageTable() = default;
  PageTable(int32_t tables, int32_t stride);
  PageTable(PageTable&& other) noexcept;
  PageTable& operator=(PageTable&& other) noexcept;
  // A table must have given back its pages: a leak is a broken invariant.
  ~PageTable();

  int32_t tables() const { return tables_; }
  int32_t stride() const { return stride_; }
  const PageId* data() const { return ids_.data(); }
  std::span<const PageId> table(int32_t table) const;
  PageId at(int32_t table, int32_t index) const { return ids_[Index(table, index)]; }
  // Takes over one reference of `id`; the place must be empty.
  void Set(int32_t table, int32_t index, PageId id);

  // Pages held, over all tables.
  int64_t pages() const { return pages_; }
  // So many places per table: new ones are empty, the pages of those that go are given back.
  void Resize(int32_t stride, PagePool& pool);
  // Gives every page's reference back and empties the table.
  void ReleaseAll(PagePool& pool);

 private:
  size_t Index(int32_t table, int32_t index) const;

  int32_t tables_ = 0;
  int32_t stride_ = 0;
  int64_t pages_ = 0;
  std::vector<PageId> ids_;
};

}  // namespace baton::kv
