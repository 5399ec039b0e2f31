// The activation of gated MLPs.
#pragma once

#include "kernels/cuda/ptx.cuh"

namespace baton::kernels::cuda {

// g / (1 + e^-g) with approximate exponential and division, whose error is far below a rounding to
// bf16. Gates below -87 count as -87, where silu is -1.4e-36: the divisor stays below 2^126, past
// which __fdividef gives 0 or NaN. The comparison lets a NaN through.
__device__ inline float Silu(float gate) {
  const float g = gate < -87.0f ? -87.0f : gate;
  return __fdividef(g, 1.0f + Exp2(-kLog2E * g));
}

}  // namespace baton::kernels::cuda
