// Where the arrays of a load in format `diffkv` are, in the memory of one back end.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/ops/diffkv_params.h"
#include "tests/gpu/bench/diffkv_load.h"

namespace baton::kernels::cuda {

// Borrowed. Leases name ids in `spare`.
struct DiffKvArrays {
  DiffKvLoad load;
  std::byte* pages = nullptr;     // [load.pages()]
  int32_t* tables = nullptr;      // [layers][rows][kv_heads][columns], -1 where no page is
  int32_t* counts = nullptr;      // [layers][rows][kv_heads][kDiffKvTiers]
  int32_t* spare = nullptr;       // [rows][layers * kv_heads * spare pages]
  DiffKvLease* leases = nullptr;  // [rows]

  int64_t sequence(int32_t layer, int32_t row) const { return int64_t{layer} * load.rows + row; }
  DiffKvLayer layer(int32_t layer, int32_t row) const {
    const int64_t head = sequence(layer, row) * load.geometry.kv_heads;
    return {.page_table = tables + head * load.columns(),
            .token_counts = counts + head * kDiffKvTiers,
            .columns = load.columns()};
  }
  DiffKvLease* lease(int32_t row) const { return leases + row; }
  DiffKvPages pool() const { return {.base = pages, .geometry = load.geometry}; }

  int64_t table_entries() const {
    return load.sequences() * load.geometry.kv_heads * load.columns();
  }
  int64_t count_entries() const { return load.sequences() * load.geometry.kv_heads * kDiffKvTiers; }
  int64_t spare_of_row() const {
    return int64_t{load.layers} * load.geometry.kv_heads * load.spare_pages();
  }
};

}  // namespace baton::kernels::cuda
