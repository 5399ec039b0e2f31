// The eigenvectors of a Gram matrix's largest eigenvalues.
#pragma once

#include <cstdint>

#include "kernels/core/carver.h"
#include "kernels/core/exec_context.h"
#include "kernels/cpu/isa_kernels.h"
#include "kernels/cpu/symmetric_eigen.h"

namespace baton::kernels::cpu {

// Row stride of the Gram matrix: rows must not all start in the same cache sets.
constexpr int64_t GramStride(int64_t width) { return width + 8; }

// Memory for the `rank` dominant eigenvectors of a [width][width] matrix.
struct SubspaceScratch {
  int64_t width = 0;
  int64_t rank = 0;
  int64_t block = 0;          // vectors of the iteration; `width` means that it's solved in full
  double* gram = nullptr;     // [width][GramStride(width)], filled by the caller
  double* vectors = nullptr;  // [block][width]; the first `rank` rows are the result
  double* images = nullptr;   // [block][width]
  EigenScratch eigen;         // of size block
};
SubspaceScratch CarveSubspace(int64_t width, int64_t rank, Carver& carver);

// Block subspace iteration with oversampling and a final Rayleigh-Ritz step (Halko, Martinsson and
// Tropp, arXiv 0909.4061, algorithm 4.4; Golub and Van Loan section 8.2.4), or a full solve where
// the block is not much smaller than the matrix. Starts from fixed numbers and is the same for
// every number of threads. The energy that the vectors leave out is within 1% of the least
// possible.
void DominantSubspace(const IsaKernels& isa,
                      const ExecContext& context,
                      const SubspaceScratch& scratch);

}  // namespace baton::kernels::cpu
