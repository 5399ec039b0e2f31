// Consecutive token positions of a sequence.
#pragma once

#include <cstdint>

namespace baton::kernels {

// Positions [begin, end).
struct PositionRange {
  int32_t begin = 0;
  int32_t end = 0;

  constexpr bool operator==(const PositionRange&) const = default;
};

}  // namespace baton::kernels
