// How the blocks of a launch share rows: each takes a piece of one row.
#pragma once

#include <algorithm>
#include <cstdint>

namespace baton::kernels::cuda {

// Rows of `units`, each a thread's work at once; both positive, and fewer than 2^31 blocks in all.
// Block b takes piece b % pieces of row b / pieces.
struct RowGrid {
  uint32_t blocks = 0;
  uint32_t threads = 0;
  uint32_t pieces = 0;

  RowGrid(int64_t rows, int64_t units) {
    constexpr int64_t kMostThreads = 256;
    const int64_t block = std::clamp<int64_t>((units + 31) / 32 * 32, 32, kMostThreads);
    const int64_t row_blocks = (units + block - 1) / block;
    threads = static_cast<uint32_t>(block);
    pieces = static_cast<uint32_t>(row_blocks);
    blocks = static_cast<uint32_t>(rows * row_blocks);
  }
};

__device__ inline int64_t GridRow(uint32_t pieces) { return blockIdx.x / pieces; }

// The thread's unit in its row; may be past the row's end.
__device__ inline int64_t GridUnit(uint32_t pieces) {
  return int64_t{blockIdx.x % pieces} * blockDim.x + threadIdx.x;
}

}  // namespace baton::kernels::cuda
