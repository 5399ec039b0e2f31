// Which sequence a row of a packed step belongs to.
#pragma once

#include <cstdint>

#include "kernels/ops/params.h"

namespace baton::kernels::cuda {

// The last of `count` sequences (row_begin ascending) that begins at or before `row`; -1 if none.
// Called by whole warps with one row each: the lanes probe 32 places at once, so that a thousand
// sequences take two steps.
__device__ inline int64_t SequenceOfRow(const SequenceRows* sequences, int64_t count, int64_t row) {
  const auto thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  const int64_t lane = thread % 32;
  // The first `low` sequences begin at or before the row, those from `high` on after it.
  int64_t low = 0;
  int64_t high = count;
  while (low < high) {
    const int64_t step = (high - low + 31) / 32;
    const int64_t probe = low + lane * step;
    const bool begun = probe < high && sequences[probe].row_begin <= row;
    const int64_t hits = __popc(__ballot_sync(0xffffffffu, begun));
    if (hits == 0) {
      break;
    }
    const int64_t next_high = low + hits * step;
    low += (hits - 1) * step + 1;
    high = next_high < high ? next_high : high;
  }
  return low - 1;
}

}  // namespace baton::kernels::cuda
