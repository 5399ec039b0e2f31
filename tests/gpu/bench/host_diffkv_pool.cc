#include "tests/gpu/bench/host_diffkv_pool.h"

#include <cstddef>

#include "common/base/status_macros.h"
#include "tests/gpu/bench/device_arena.h"
#include "tests/gpu/bench/diffkv_arrays.h"
#include "tests/gpu/bench/diffkv_load.h"

namespace baton::kernels::cuda {
namespace {

template <typename T>
int64_t CountDifferent(const T* got, const T* want, size_t count) {
  int64_t different = 0;
  for (size_t i = 0; i < count; ++i) {
    different += got[i] == want[i] ? 0 : 1;
  }
  return different;
}

}  // namespace

absl::Status HostDiffKvPool::CopyTables(const DiffKvArrays& device) {
  const DiffKvLoad& load = device.load;
  const int64_t spare = device.spare_of_row();
  BATON_ASSIGN_OR_RETURN(tables_, Downloaded(device.tables, device.table_entries()));
  BATON_ASSIGN_OR_RETURN(counts_, Downloaded(device.counts, device.count_entries()));
  BATON_ASSIGN_OR_RETURN(spare_, Downloaded(device.spare, load.rows * spare));
  BATON_ASSIGN_OR_RETURN(leases_, Downloaded(device.leases, load.rows));
  for (size_t row = 0; row < leases_.size(); ++row) {
    leases_[row].ids = spare_.data() + static_cast<int64_t>(row) * spare;
  }
  pages_ = Buffer(load.pool_bytes());
  arrays_ = {.load = load,
             .pages = pages_.data(),
             .tables = tables_.data(),
             .counts = counts_.data(),
             .spare = spare_.data(),
             .leases = leases_.data()};
  return absl::OkStatus();
}

absl::StatusOr<HostDiffKvPool> HostDiffKvPool::Copy(const DiffKvArrays& device) {
  HostDiffKvPool copy;
  BATON_RETURN_IF_ERROR(copy.CopyTables(device));
  BATON_RETURN_IF_ERROR(CopyToHost(copy.pages_.data(), device.pages, copy.pages_.size()));
  return copy;
}

absl::StatusOr<HostDiffKvPool> HostDiffKvPool::CopyRow(const DiffKvArrays& device,
                                                       int32_t layer,
                                                       int32_t row) {
  HostDiffKvPool copy;
  BATON_RETURN_IF_ERROR(copy.CopyTables(device));
  const size_t page_bytes = device.load.geometry.page_bytes();
  const int32_t entries = device.load.geometry.kv_heads * device.load.columns();
  const int32_t* table = copy.arrays_.layer(layer, row).page_table;
  for (int32_t i = 0; i < entries; ++i) {
    if (table[i] < 0) continue;
    const size_t offset = static_cast<size_t>(table[i]) * page_bytes;
    BATON_RETURN_IF_ERROR(
        CopyToHost(copy.pages_.data() + offset, device.pages + offset, page_bytes));
  }
  return copy;
}

int64_t HostDiffKvPool::Differences(const HostDiffKvPool& other) const {
  int64_t different = CountDifferent(pages_.data(), other.pages_.data(), pages_.size()) +
                      CountDifferent(tables_.data(), other.tables_.data(), tables_.size()) +
                      CountDifferent(counts_.data(), other.counts_.data(), counts_.size());
  for (size_t i = 0; i < leases_.size(); ++i) {
    different += leases_[i].used == other.leases_[i].used ? 0 : 1;
  }
  return different;
}

}  // namespace baton::kernels::cuda
