// Counts the positions whose queries score.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/kv_format/unobserved_range.h"

namespace baton::kernels {

// Positions of [begin, end), end >= 0, that `count` disjoint ranges do not leave out. Stored
// positions may come from another machine: whatever `begin` is, this wraps as vectors of 32-bit
// lanes do.
constexpr int32_t ObservedPositions(const UnobservedRange* ranges,
                                    int32_t count,
                                    int32_t begin,
                                    int32_t end) {
  uint32_t observed = static_cast<uint32_t>(end) - static_cast<uint32_t>(begin);
  for (int32_t i = 0; i < count; ++i) {
    const UnobservedRange& range = ranges[i];
    const int32_t left_out =
        range.Before(std::min(range.end, end)) - range.Before(std::max(range.begin, begin));
    observed -= static_cast<uint32_t>(std::max(0, left_out));
  }
  return static_cast<int32_t>(observed);
}

}  // namespace baton::kernels
