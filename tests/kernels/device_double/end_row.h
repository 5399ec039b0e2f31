// How far the rows of a call reach.
#pragma once

#include <algorithm>
#include <cstdint>

namespace baton::kernels {

// The first row behind all that the call's elements name.
template <typename T>
int64_t EndRow(const T* elements, int64_t count) {
  int64_t end = 0;
  for (int64_t i = 0; i < count; ++i) {
    end = std::max<int64_t>(end, int64_t{elements[i].row} + 1);
  }
  return end;
}

}  // namespace baton::kernels
