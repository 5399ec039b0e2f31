// Instructions on fp64 beside those of ptx.cuh.
#pragma once

#include "kernels/cuda/device_code.h"

namespace baton::kernels::cuda {

// d += a b of m16n8k16 in fp64. Lane l has of A, in a[i], column l%4 + 4 (i/2) of row l/4 + 8
// (i%2), of B, in b[i], row l%4 + 4 i of column l/4, and of D, in d[i], the columns 2 (l%4) + {0,
// 1} of row l/4 + 8 i.
__device__ inline void MultiplyAddF64(double (&d)[2][2],
                                      const double (&a)[8],
                                      const double (&b)[4]) {
  if constexpr (kHopperCode) {
    asm("mma.sync.aligned.m16n8k16.row.col.f64.f64.f64.f64 {%0,%1,%2,%3}, "
        "{%4,%5,%6,%7,%8,%9,%10,%11}, {%12,%13,%14,%15}, {%0,%1,%2,%3};"
        : "+d"(d[0][0]), "+d"(d[0][1]), "+d"(d[1][0]), "+d"(d[1][1])
        : "d"(a[0]),
          "d"(a[1]),
          "d"(a[2]),
          "d"(a[3]),
          "d"(a[4]),
          "d"(a[5]),
          "d"(a[6]),
          "d"(a[7]),
          "d"(b[0]),
          "d"(b[1]),
          "d"(b[2]),
          "d"(b[3]));
  } else {
    // By m8n8k4, over whose lanes the same elements lie.
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      asm("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0,%1}, {%2}, {%3}, {%0,%1};"
          : "+d"(d[i % 2][0]), "+d"(d[i % 2][1])
          : "d"(a[i]), "d"(b[i / 2]));
    }
  }
}

// 1 / x, off by an ulp or two, of a normal x. Never moved behind a branch, so that it is computed
// among other instructions. The approximation has some twenty bits, of whose error the third power
// is left.
__device__ inline double Inverse(double x) {
  double inverse;
  asm volatile(
      "{\n"
      ".reg .f64 y, minus, rest, change;\n"
      "rcp.approx.ftz.f64 y, %1;\n"
      "neg.f64 minus, %1;\n"
      "fma.rn.f64 rest, minus, y, 0d3FF0000000000000;\n"  // 1 - x y
      "fma.rn.f64 change, rest, rest, rest;\n"
      "fma.rn.f64 %0, change, y, y;\n"
      "}"
      : "=d"(inverse)
      : "d"(x));
  return inverse;
}

// 1 / sqrt(x), off by an ulp or two, of a normal positive x: what rsqrt computes of such. Never
// moved behind a branch, so that it is computed among other instructions. The approximation has
// some twenty bits, of whose error the third power is left.
__device__ inline double InverseRoot(double x) {
  double root;
  asm volatile(
      "{\n"
      ".reg .f64 y, square, rest, change, factor;\n"
      "rsqrt.approx.ftz.f64 y, %1;\n"
      "mul.rn.f64 square, y, y;\n"
      "neg.f64 square, square;\n"
      "fma.rn.f64 rest, square, %1, 0d3FF0000000000000;\n"                  // 1 - x y^2
      "fma.rn.f64 factor, rest, 0d3FD8000000000000, 0d3FE0000000000000;\n"  // 3/8 rest + 1/2
      "mul.rn.f64 change, rest, y;\n"
      "fma.rn.f64 %0, factor, change, y;\n"
      "}"
      : "=d"(root)
      : "d"(x));
  return root;
}

}  // namespace baton::kernels::cuda
