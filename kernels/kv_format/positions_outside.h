// Counts positions that no range covers.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/kv_format/position_range.h"

namespace baton::kernels {

// Positions of [begin, end) that are in none of `count` disjoint ranges of positions >= 0. Stored
// positions may come from another machine: whatever they are, this wraps as vectors of 32-bit lanes
// do.
constexpr int32_t PositionsOutside(const PositionRange* ranges,
                                   int32_t count,
                                   int32_t begin,
                                   int32_t end) {
  uint32_t outside = static_cast<uint32_t>(end) - static_cast<uint32_t>(begin);
  for (int32_t i = 0; i < count; ++i) {
    const int32_t covered = ranges[i].end - std::max(ranges[i].begin, begin);
    outside -= static_cast<uint32_t>(std::max(0, covered));
  }
  return static_cast<int32_t>(outside);
}

}  // namespace baton::kernels
