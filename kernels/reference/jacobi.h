// The full symmetric eigensolver that other back ends' low-rank bases are checked against.
#pragma once

#include <cstdint>

namespace baton::kernels::reference {

// Cyclic Jacobi (Golub and Van Loan, Matrix Computations, section 8.5): diagonalises the symmetric
// a[n][n] in place; row i of vectors[n][n] becomes the unit eigenvector of the eigenvalue a[i][i],
// in no order.
void JacobiEigen(int64_t n, double* a, double* vectors);

}  // namespace baton::kernels::reference
