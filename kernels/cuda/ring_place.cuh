// Where a warp is in a ring in shared memory.
#pragma once

#include <cstdint>

namespace baton::kernels::cuda {

// A place, and the parity of the phase in which it is filled.
template <int32_t kPlaces>
struct RingPlace {
  int32_t place = 0;
  uint32_t parity = 0;

  __device__ void Next() {
    if (++place == kPlaces) {
      place = 0;
      parity ^= 1;
    }
  }
};

}  // namespace baton::kernels::cuda
