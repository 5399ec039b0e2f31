// The eigenvectors of a Gram matrix's largest eigenvalues.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/core/carver.h"
#include "kernels/cuda/orthonormal_rows.h"
#include "kernels/cuda/symmetric_eigen.h"

namespace baton::kernels::cuda {

// Device memory for the `rank` dominant eigenvectors of a matrix of `columns` columns.
struct SubspaceScratch {
  int64_t columns = 0;
  int64_t width = 0;  // columns, padded to a multiple of 64
  bool full = false;  // all eigenvectors are found
  OrthonormalScratch orthonormal;
  double* rows = nullptr;    // [block][width]
  double* images = nullptr;  // [block][width]
  EigenScratch eigen;        // of size block; in full, of the width
};
// Takes no less for more columns, nor for a larger rank among those that are not solved in full.
SubspaceScratch CarveSubspace(int64_t columns, int64_t rank, Carver& carver);

// The largest rank for which the iteration runs, 0 if the matrix is always solved in full.
int64_t LargestIteratedRank(int64_t columns);

// Row order[i] of vectors, `width` apart, is the eigenvector of the i-th largest eigenvalue.
struct DominantVectors {
  const double* vectors = nullptr;
  const int32_t* order = nullptr;
};

// Block subspace iteration with oversampling and a final Rayleigh-Ritz step (Halko, Martinsson and
// Tropp, arXiv 0909.4061, algorithm 4.4), or a full solve where the block is not much smaller than
// the matrix. `gram`, [width][width] with zeros behind the columns, is overwritten by a full solve.
// Starts from fixed numbers and runs a fixed number of rounds, so nobody waits for a result to go
// on. The energy that the rank's vectors leave out is within 1% of the least possible (0.1% where
// the spectrum falls).
//
// For 1024 columns and rank 160 about 230 launches, most of them of a few blocks in turn, about 3
// ms on an H200 by estimate; the arithmetic, 5 GFLOP of fp64, is a tenth of that. Layers do not
// depend on each other, so they could share launches.
DominantVectors FindDominant(const SubspaceScratch& scratch, double* gram, cudaStream_t stream);

}  // namespace baton::kernels::cuda
