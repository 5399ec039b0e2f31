// Eigenvectors of a symmetric matrix in fp64.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/core/carver.h"

namespace baton::kernels::cuda {

// Device memory of SolveSymmetric for matrices of `size`, a multiple of 64.
struct EigenScratch {
  int64_t size = 0;
  double* vectors = nullptr;    // [size][size]: rows are the result
  double* rotations = nullptr;  // [size / 32][32][32]
  int32_t* still = nullptr;     // [size / 32]: pairs of blocks without a rotation
  double* trace = nullptr;      // [1]
  int32_t* order = nullptr;     // [size]: rows of vectors, the largest eigenvalue first
};
EigenScratch CarveEigen(int64_t size, Carver& carver);

// Diagonalises `matrix`, [size][size], in place, by two-sided Jacobi rotations: rows of 16 go in
// pairs through rounds, a block solves each pair's 32 x 32 matrix, then all apply the rotations
// (Golub and Van Loan, Matrix Computations, sections 8.5.3 to 8.5.6). Rows from `columns` on hold
// zeros and are not among the order's first `columns`. Launches 12 sweeps, more than any matrix
// takes; a pair of blocks that has nothing above 1e-14 of the trace off its diagonal is left as it
// is.
void SolveSymmetric(const EigenScratch& scratch,
                    int64_t columns,
                    double* matrix,
                    cudaStream_t stream);

}  // namespace baton::kernels::cuda
