// Eigenvectors of a symmetric matrix in fp64, on one thread.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/core/carver.h"
#include "kernels/cpu/isa_kernels.h"

namespace baton::kernels::cpu {

// Memory of one solve of size n.
struct EigenScratch {
  double* a = nullptr;             // [n][n]: the matrix; destroyed
  double* rotations = nullptr;     // [n][n]: row j becomes T's eigenvector of values[j]
  double* values = nullptr;        // [n]: eigenvalues, unordered
  double* off_diagonal = nullptr;  // [n]
  double* factors = nullptr;       // [n]
  double* work = nullptr;          // [n]
  int32_t* order = nullptr;        // [n]: indices of values, the largest first
};
EigenScratch CarveEigen(int64_t n, Carver& carver);

// Householder tridiagonalisation and implicit QL (Golub and Van Loan, Matrix Computations, sections
// 8.3.1 and 8.3.3). Fills values and order; SymmetricEigenvector then gives vectors.
void SolveSymmetric(const IsaKernels& isa, int64_t n, const EigenScratch& scratch);

// Writes the unit eigenvector of the `index`-th largest eigenvalue, [n].
void SymmetricEigenvector(
    const IsaKernels& isa, int64_t n, const EigenScratch& scratch, int64_t index, double* vector);

}  // namespace baton::kernels::cpu
