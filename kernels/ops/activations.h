// Activations, the pointers to void of op parameters.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/core/dtype.h"

namespace baton::kernels {

// The element `count` elements behind, of a back end whose activations are of `dtype`
// (OpTable::activations).
inline void* Advance(void* activations, int64_t count, DType dtype) {
  return static_cast<std::byte*>(activations) + count * static_cast<int64_t>(DTypeBytes(dtype));
}
inline const void* Advance(const void* activations, int64_t count, DType dtype) {
  return static_cast<const std::byte*>(activations) +
         count * static_cast<int64_t>(DTypeBytes(dtype));
}

// The elements themselves, of a back end on the host, whose activations are fp32.
inline float* Floats(void* activations) { return static_cast<float*>(activations); }
inline const float* Floats(const void* activations) {
  return static_cast<const float*>(activations);
}

}  // namespace baton::kernels
