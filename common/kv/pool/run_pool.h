// Contiguous memory of a worker's KV, for formats whose sequences are not paged.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>

#include "absl/status/statusor.h"

#include "kernels/core/memory.h"

namespace baton::kv {

// One arena from which runs of whole units are taken, first fit, and to which they return; free
// neighbours join. Bookkeeping belongs to the engine thread and is not thread-safe. Returning what
// was not taken is a broken invariant and ends the process.
class RunPool {
 public:
  static constexpr size_t kUnitBytes = 4096;

  // A run of units.
  struct Run {
    int64_t first_unit = 0;
    int64_t units = 0;
  };

  // kInvalidArgument unless `pool_bytes` holds a unit. kResourceExhausted when `space`, the back
  // end's memory, has not so much.
  static absl::StatusOr<std::unique_ptr<RunPool>> Create(
      int64_t pool_bytes, kernels::MemorySpace& space = kernels::HostMemory());

  RunPool(const RunPool&) = delete;
  RunPool& operator=(const RunPool&) = delete;

  // Room for `bytes` in one piece, or nothing when there is no such piece now.
  std::optional<Run> Allocate(int64_t bytes);
  void Release(const Run& run);

  // Where ops find the units.
  std::byte* base() const { return arena_.data(); }
  // To be looked at where the pool is on the host.
  std::span<std::byte> bytes(const Run& run);
  bool on_host() const { return on_host_; }
  static int64_t UnitsFor(int64_t bytes);
  int64_t units_total() const { return units_total_; }
  int64_t units_free() const { return units_free_; }
  int64_t bytes_total() const { return units_total_ * static_cast<int64_t>(kUnitBytes); }
  int64_t bytes_free() const { return units_free_ * static_cast<int64_t>(kUnitBytes); }

 private:
  RunPool(kernels::Memory arena, bool on_host);

  kernels::Memory arena_;
  const bool on_host_;
  int64_t units_total_;
  int64_t units_free_;
  std::map<int64_t, int64_t> free_;  // first unit -> units; no two runs touch
};

}  // namespace baton::kv
