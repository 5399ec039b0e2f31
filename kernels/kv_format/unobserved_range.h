// Token positions whose queries score no token of format `diffkv`.
#pragma once

#include <cstdint>

namespace baton::kernels {

// The positions p of [begin, end), none negative, but those where p + 1 is a multiple of
// 2^observed_shift.
struct UnobservedRange {
  static constexpr int32_t kAll = 31;

  int32_t begin = 0;
  int32_t end = 0;
  int32_t observed_shift = kAll;

  // Positions of [0, position) that such a range leaves out if it covers them.
  constexpr int32_t Before(int32_t position) const {
    return position - (position >> observed_shift);
  }
  constexpr bool operator==(const UnobservedRange&) const = default;
};

}  // namespace baton::kernels
