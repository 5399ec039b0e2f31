// Eigenvectors of small symmetric matrices.
#pragma once

#include <cstdint>
#include <vector>

namespace baton::lab {

// The unit eigenvectors [dim][dim] of a symmetric matrix [dim][dim], that of the largest eigenvalue
// first; by Jacobi rotations. Seconds at a dim of some hundreds.
std::vector<double> SymmetricEigenvectors(std::vector<double> matrix, int64_t dim);

}  // namespace baton::lab
