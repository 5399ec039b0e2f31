// What an iteration for dominant directions starts from.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/alike_problems.h"

namespace baton::kernels::cuda {

// Of a wider matrix a transform does not fit the shared memory of every device.
inline constexpr int64_t kMostSketchColumns = 8192;

struct SketchShape {
  AlikeProblems problems;
  int64_t rows = 0;
  int64_t width = 0;    // of rows and of the matrix, whose columns are zero behind `columns`
  int64_t columns = 0;  // at least the rows, at most kMostSketchColumns
};

// rows = S gram, [rows][width], of every problem, for a symmetric matrix [width][width] and a fixed
// S of signs: rows and columns of Hadamard's matrix in orders that mix the bits of their numbers
// (subsampled randomized Hadamard transform; Tropp, "Improved analysis of the subsampled randomized
// Hadamard transform", arXiv 1011.1595). Any 160 neighbouring, equally distant or random columns of
// 192 rows have a condition of 20 at most (simulated), as numbers of a normal distribution have. A
// product by such numbers costs 2 rows width^2 operations; this costs width^2 log2(width) additions
// and reads the matrix once.
void SketchRows(const SketchShape& shape, const double* gram, double* rows, cudaStream_t stream);

}  // namespace baton::kernels::cuda
