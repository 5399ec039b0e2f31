// Instructions on fp64 beside those of ptx.cuh.
#pragma once

namespace baton::kernels::cuda {

// d += a b of m8n8k4 in fp64. Lane l has of A column l%4 of row l/4, of B row l%4 of column l/4,
// and of D the columns 2 (l%4) + {0, 1} of row l/4.
__device__ inline void MultiplyAddF64(double (&d)[2], double a, double b) {
  asm("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0,%1}, {%2}, {%3}, {%0,%1};"
      : "+d"(d[0]), "+d"(d[1])
      : "d"(a), "d"(b));
}

}  // namespace baton::kernels::cuda
