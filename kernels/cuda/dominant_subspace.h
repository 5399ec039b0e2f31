// The eigenvectors of a Gram matrix's largest eigenvalues.
#pragma once

#include <cstdint>

#include "kernels/core/carver.h"
#include "kernels/cuda/orthonormal_rows.h"
#include "kernels/cuda/runtime/device_queue.h"
#include "kernels/cuda/symmetric_eigen.h"

namespace baton::kernels::cuda {

// Device memory for the `rank` dominant eigenvectors of a matrix of `columns` columns, that of the
// first problem where there are several (orthonormal.problems).
struct SubspaceScratch {
  int64_t columns = 0;
  int64_t width = 0;  // columns, padded to a multiple of 64
  bool full = false;  // all eigenvectors are found
  OrthonormalScratch orthonormal;
  double* rows = nullptr;       // [block][width]
  double* images = nullptr;     // [block][width]
  double* quotients = nullptr;  // [width / 64][block]: parts of the rows' Rayleigh quotients
  double* cut = nullptr;        // [1]: the largest quotient but `cut_row`
  int32_t* order = nullptr;     // [block]: rows, the largest quotient first
  int64_t rank = 0;
  int64_t cut_row = 0;  // at least the rank, less than the block
  EigenScratch eigen;   // in full, of the width
};
// Takes no less for more columns, nor for a larger rank among those that are not solved in full.
SubspaceScratch CarveSubspace(int64_t columns, int64_t rank, Carver& carver);

// The largest rank for which the iteration runs, 0 if the matrix is always solved in full.
int64_t LargestIteratedRank(int64_t columns);

// Row order[i] of vectors, `width` apart, is the direction of the i-th most energy; of the first
// problem.
struct DominantVectors {
  const double* vectors = nullptr;
  const int32_t* order = nullptr;
};

// Block subspace iteration (Halko, Martinsson and Tropp, arXiv 0909.4061, algorithm 4.4) whose
// later rounds multiply by Chebyshev polynomials (Zhou and Saad, "A Chebyshev-Davidson algorithm
// for large symmetric eigenproblems", SIAM J. Matrix Anal. Appl. 29, 2007), or a full solve where
// the block is not much smaller than the matrix. Rows that were orthonormalised in order come out
// in about the eigenvectors' order, so the block's rows of the largest Rayleigh quotients are
// taken, without a Rayleigh-Ritz step. Several problems, none of which is solved in full, are found
// at once, with as many launches as one: a launch takes 20 us and more whatever it has to do, and
// one problem seldom fills the device. `gram`, the first's, [width][width] with zeros behind the
// columns, is overwritten by a full solve. Starts from a fixed sketch and runs a fixed number of
// rounds, so nobody waits for a result to go on. The energy that the rank's vectors leave out is
// within 1% of the least possible, at ranks of some ten directions and more.
//
// For 1024 columns and rank 160 30 launches, as one graph where they come again with the same
// scratch and matrix (LaunchCache); the arithmetic, 4 GFLOP of fp64, is 0.06 ms of an H200, but
// most launches are of 96 small blocks at most. Layers do not depend on each other, so they share
// the device.
DominantVectors FindDominant(const DeviceQueue& queue,
                             const SubspaceScratch& scratch,
                             double* gram);

}  // namespace baton::kernels::cuda
