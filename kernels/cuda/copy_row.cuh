// Copies of rows, for ops that move elements as they are.
#pragma once

#include <cstdint>

#include "kernels/cuda/row_grid.cuh"

namespace baton::kernels::cuda {

// Units that a thread has in flight.
inline constexpr int kCopyUnits = 4;

// The grid for CopyRowPiece on rows of `units`.
inline RowGrid CopyGrid(int64_t rows, int64_t units) {
  return RowGrid(rows, (units + kCopyUnits - 1) / kCopyUnits);
}

// Copies the block's piece of a row; `pieces` is CopyGrid's. All loads come before the first store.
template <typename Unit>
__device__ inline void CopyRowPiece(const Unit* source,
                                    int64_t units,
                                    uint32_t pieces,
                                    Unit* target) {
  const int64_t first =
      int64_t{blockIdx.x % pieces} * kCopyUnits * blockDim.x + int64_t{threadIdx.x};
  Unit held[kCopyUnits];
#pragma unroll
  for (int i = 0; i < kCopyUnits; ++i) {
    const int64_t unit = first + i * int64_t{blockDim.x};
    if (unit < units) {
      held[i] = source[unit];
    }
  }
#pragma unroll
  for (int i = 0; i < kCopyUnits; ++i) {
    const int64_t unit = first + i * int64_t{blockDim.x};
    if (unit < units) {
      target[unit] = held[i];
    }
  }
}

}  // namespace baton::kernels::cuda
