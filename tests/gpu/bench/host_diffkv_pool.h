// A copy of a DiffKvPool in the host's memory, for the CPU back end.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "kernels/core/buffer.h"
#include "kernels/ops/diffkv_params.h"
#include "tests/gpu/bench/diffkv_arrays.h"

namespace baton::kernels::cuda {

// Pages keep their ids. The queue must be done when a copy is made.
class HostDiffKvPool {
 public:
  static absl::StatusOr<HostDiffKvPool> Copy(const DiffKvArrays& device);
  // With the pages of one sequence alone; the others take no memory.
  static absl::StatusOr<HostDiffKvPool> CopyRow(const DiffKvArrays& device,
                                                int32_t layer,
                                                int32_t row);

  const DiffKvArrays& arrays() const { return arrays_; }
  // Bytes of pages, and entries of tables, counts and leases, that differ.
  int64_t Differences(const HostDiffKvPool& other) const;

 private:
  // Everything but the pages.
  absl::Status CopyTables(const DiffKvArrays& device);

  Buffer pages_;
  std::vector<int32_t> tables_;
  std::vector<int32_t> counts_;
  std::vector<int32_t> spare_;
  std::vector<DiffKvLease> leases_;
  DiffKvArrays arrays_;
};

}  // namespace baton::kernels::cuda
