// Starts and ends lines of an attention tile (isa_kernels.h) that take part in a merge.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "kernels/cpu/isa_kernels.h"

namespace baton::kernels::cpu {

inline constexpr float kLog2E = 1.44269504f;  // scores of a tile are in base 2
inline constexpr double kLn2 = 0.693147180559945309;

// Sum of a line's weights relative to its maximum; 0 when it has seen no key.
inline float SumOfWeights(const IsaKernels& isa, const AttentionTile& tile, int64_t line) {
  const int64_t lanes = isa.panel_columns / 2;
  float sum = 0.0f;
  for (int64_t lane = 0; lane < lanes; ++lane) {
    sum += tile.row_sum[line * lanes + lane];
  }
  return sum;
}

// Continues from attention over other keys, which count as one key of score `lse` (base e, -inf for
// none) and value out[head_dim]. After attention_begin.
inline void SeedLine(
    const IsaKernels& isa, const AttentionTile& tile, int64_t line, const float* out, float lse) {
  if (lse == -std::numeric_limits<float>::infinity()) {
    return;
  }
  tile.row_max[line] = lse * kLog2E;
  tile.row_sum[line * (isa.panel_columns / 2)] = 1.0f;
  std::copy(out, out + tile.head_dim, tile.sum_values + line * tile.width);
}

// Writes one line's output, zeros when it has seen no key, and its log-sum-exp if `lse` is set.
inline void FinishLine(
    const IsaKernels& isa, const AttentionTile& tile, int64_t line, float* out, float* lse) {
  const float sum = SumOfWeights(isa, tile, line);
  if (sum > 0.0f) {
    isa.attention_finish(tile, line, out);
  } else {
    std::fill(out, out + tile.head_dim, 0.0f);
  }
  if (lse != nullptr) {
    *lse = sum > 0.0f
               ? static_cast<float>((double{tile.row_max[line]} + std::log2(double{sum})) * kLn2)
               : -std::numeric_limits<float>::infinity();
  }
}

}  // namespace baton::kernels::cpu
