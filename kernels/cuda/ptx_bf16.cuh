// Instructions on bf16 beside those of ptx.cuh.
#pragma once

#include <cstdint>

namespace baton::kernels::cuda {

// d += a b of m16n8k16 with bf16 operands; operands lie over the lanes as those of MultiplyAdd
// (ptx.cuh).
__device__ inline void MultiplyAddBf16(float (&d)[4],
                                       const uint32_t (&a)[4],
                                       const uint32_t (&b)[2]) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
      "{%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// Two numbers as bf16, rounded to nearest even; `low` in the lower half, first in memory.
__device__ inline uint32_t PackBf16(float low, float high) {
  uint32_t packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}

// The numbers of a packed pair.
__device__ inline float LowBf16(uint32_t packed) { return __uint_as_float(packed << 16); }
__device__ inline float HighBf16(uint32_t packed) { return __uint_as_float(packed & 0xffff0000u); }

// What rounding has left of the two numbers that became `rounded`, as bf16: with it they are sums
// of two, of which 2^-17 is missing.
__device__ inline uint32_t RestBf16(float low, float high, uint32_t rounded) {
  return PackBf16(low - LowBf16(rounded), high - HighBf16(rounded));
}

// The lower (upper) halves of two words, `x`'s below.
__device__ inline uint32_t PairOfLow(uint32_t x, uint32_t y) { return __byte_perm(x, y, 0x5410); }
__device__ inline uint32_t PairOfHigh(uint32_t x, uint32_t y) { return __byte_perm(x, y, 0x7632); }

}  // namespace baton::kernels::cuda
