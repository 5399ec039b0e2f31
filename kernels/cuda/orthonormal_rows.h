// Orthonormal rows in fp64.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/core/carver.h"
#include "kernels/cuda/alike_problems.h"
#include "kernels/cuda/runtime/device_queue.h"

namespace baton::kernels::cuda {

// Device memory of OrthonormaliseRows, that of the first problem where there are several. Rows and
// width are multiples of 64.
struct OrthonormalScratch {
  AlikeProblems problems;
  int64_t rows = 0;
  int64_t width = 0;             // zero columns behind the first `columns`
  int64_t columns = 0;           // at least twice the rows
  double* square = nullptr;      // [rows][rows]: products, then the factor
  double* inverse = nullptr;     // [rows][192]: of the factor's blocks on the diagonal
  int32_t* dependent = nullptr;  // [rows]: those that are combinations of the ones before
  int32_t* steep = nullptr;      // [1]: whether rows may not be orthonormal after one call
};
OrthonormalScratch CarveOrthonormal(int64_t rows, int64_t columns, int64_t width, Carver& carver);

// Makes row i of `rows`, [rows][width], and of those of every other problem, orthogonal to the rows
// before it and of length 1, by the Cholesky factor of their products: V becomes L^-1 V with L L^T
// = V V^T (Yamamoto et al., "Roundoff error analysis of the CholeskyQR2 algorithm", ETNA 44, 2015).
// Leaves dependencies of 1e-16 times the square of the rows' condition, and gives a row that
// depends on the others up to rounding fixed numbers instead. Three launches, each while the kernel
// in front ends: their number counts, since a block of other work that is in the way holds up every
// one.
void OrthonormaliseRows(const DeviceQueue& queue, const OrthonormalScratch& scratch, double* rows);

// The same, and once more where rows may have been left with dependencies of more than 1e-8: after
// two calls rows are orthonormal to rounding whatever they were.
void FinishOrthonormalRows(const DeviceQueue& queue,
                           const OrthonormalScratch& scratch,
                           double* rows);

}  // namespace baton::kernels::cuda
