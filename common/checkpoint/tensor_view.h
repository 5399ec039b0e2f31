// A stored tensor as seen by a reader.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/core/dtype.h"

namespace baton::checkpoint {

// A tensor as stored: bytes borrowed from the checkpoint's memory map, row-major, little-endian.
// The bytes have no alignment beyond one byte.
struct TensorView {
  kernels::DType dtype = kernels::DType::kBF16;
  std::vector<int64_t> shape;
  std::span<const std::byte> bytes;

  int64_t num_elements() const {
    int64_t count = 1;
    for (const int64_t extent : shape) {
      count *= extent;
    }
    return count;
  }
};

}  // namespace baton::checkpoint
