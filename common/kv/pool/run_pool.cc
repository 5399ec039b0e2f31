#include "common/kv/pool/run_pool.h"

#include <iterator>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

#include "common/base/check.h"
#include "kernels/core/memory.h"

namespace baton::kv {

absl::StatusOr<std::unique_ptr<RunPool>> RunPool::Create(int64_t pool_bytes,
                                                         kernels::MemorySpace& space) {
  const int64_t units = pool_bytes / static_cast<int64_t>(kUnitBytes);
  if (units < 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "KV pool of ", pool_bytes, " bytes; it must hold at least ", kUnitBytes, " bytes"));
  }
  absl::StatusOr<kernels::Memory> arena = space.Allocate(static_cast<size_t>(units) * kUnitBytes);
  if (!arena.ok()) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no memory for a KV pool of ", pool_bytes, " bytes; ask for a smaller one"));
  }
  return std::unique_ptr<RunPool>(new RunPool(*std::move(arena), space.is_host()));
}

RunPool::RunPool(kernels::Memory arena, bool on_host)
    : arena_(std::move(arena)),
      on_host_(on_host),
      units_total_(static_cast<int64_t>(arena_.size() / kUnitBytes)),
      units_free_(units_total_) {
  free_.emplace(0, units_total_);
}

int64_t RunPool::UnitsFor(int64_t bytes) {
  const auto unit = static_cast<int64_t>(kUnitBytes);
  return (bytes + unit - 1) / unit;
}

std::optional<RunPool::Run> RunPool::Allocate(int64_t bytes) {
  const int64_t units = UnitsFor(bytes);
  BATON_CHECK(units > 0);
  for (auto free = free_.begin(); free != free_.end(); ++free) {
    if (free->second < units) {
      continue;
    }
    const Run run = {.first_unit = free->first, .units = units};
    const int64_t rest = free->second - units;
    free_.erase(free);
    if (rest > 0) {
      free_.emplace(run.first_unit + units, rest);
    }
    units_free_ -= units;
    return run;
  }
  return std::nullopt;
}

void RunPool::Release(const Run& run) {
  BATON_CHECK(run.first_unit >= 0 && run.units > 0 && run.first_unit + run.units <= units_total_);
  const auto next = free_.lower_bound(run.first_unit);
  BATON_CHECK(next == free_.end() || run.first_unit + run.units <= next->first);
  const bool has_previous = next != free_.begin();
  const auto previous = has_previous ? std::prev(next) : free_.end();
  BATON_CHECK(!has_previous || previous->first + previous->second <= run.first_unit);
  Run joined = run;
  if (next != free_.end() && run.first_unit + run.units == next->first) {
    joined.units += next->second;
    free_.erase(next);
  }
  if (has_previous && previous->first + previous->second == run.first_unit) {
    previous->second += joined.units;
  } else {
    free_.emplace(joined.first_unit, joined.units);
  }
  units_free_ += run.units;
}

std::span<std::byte> RunPool::bytes(const Run& run) {
  return {arena_.data() + static_cast<size_t>(run.first_unit) * kUnitBytes,
          static_cast<size_t>(run.units) * kUnitBytes};
}

}  // namespace baton::kv
