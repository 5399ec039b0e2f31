#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "kernels/core/carver.h"
#include "kernels/cuda/dominant_subspace.h"
#include "kernels/cuda/matmul_f64.cuh"
#include "kernels/cuda/orthonormal_rows.h"
#include "kernels/cuda/symmetric_eigen.h"

namespace baton::kernels::cuda {
namespace {

// Vectors beyond the rank: without them the last directions converge slowly.
constexpr int64_t kOversampling = 32;
// Up to this width a full solve takes no longer than the iteration.
constexpr int64_t kFullWidth = 128;
// Leaves 0.7% too much of a flat spectrum, 0.1% of one that falls as 1 / i.
constexpr int kRounds = 10;
// Calls of OrthonormaliseRows that make any rows orthonormal to rounding.
constexpr int kFinalCalls = 3;

int64_t Padded(int64_t count) { return (count + kTileF64 - 1) / kTileF64 * kTileF64; }

// out = rows x b, or x b^T; rows and out are `width` apart.
template <OperandOrder kOrderB>
void Multiply(const SubspaceScratch& scratch,
              const double* rows,
              MatmulF64 args,
              cudaStream_t stream) {
  args.a = rows;
  args.a_stride = scratch.width;
  args.rows = scratch.orthonormal.rows;
  args.depth = scratch.width;
  LaunchMatmulF64<kOrderB>(args, stream);
}

// images = rows x gram.
void MultiplyByGram(const SubspaceScratch& scratch,
                    const double* rows,
                    const double* gram,
                    double* images,
                    cudaStream_t stream) {
  Multiply<OperandOrder::kDepth>(scratch,
                                 rows,
                                 {.b = gram,
                                  .b_stride = scratch.width,
                                  .out = images,
                                  .out_stride = scratch.width,
                                  .columns = scratch.width},
                                 stream);
}

// Turns the block's orthonormal rows into the eigenvectors of the matrix's projection on them.
DominantVectors SolveProjection(const SubspaceScratch& scratch,
                                const double* gram,
                                cudaStream_t stream) {
  const int64_t block = scratch.orthonormal.rows;
  double* projection = scratch.orthonormal.square;
  MultiplyByGram(scratch, scratch.rows, gram, scratch.images, stream);
  Multiply<OperandOrder::kRows>(scratch,
                                scratch.images,
                                {.b = scratch.rows,
                                 .b_stride = scratch.width,
                                 .out = projection,
                                 .out_stride = block,
                                 .columns = block},
                                stream);
  SolveSymmetric(scratch.eigen, block, kNearSweeps, projection, stream);
  LaunchMatmulF64<OperandOrder::kDepth>({.a = scratch.eigen.vectors,
                                         .a_stride = block,
                                         .b = scratch.rows,
                                         .b_stride = scratch.width,
                                         .out = scratch.images,
                                         .out_stride = scratch.width,
                                         .rows = block,
                                         .columns = scratch.width,
                                         .depth = block},
                                        stream);
  return {.vectors = scratch.images, .order = scratch.eigen.order};
}

}  // namespace

int64_t LargestIteratedRank(int64_t columns) {
  // Twice the block, a multiple of 64, is less than the width.
  const int64_t block =
      columns <= kFullWidth ? 0 : (Padded(columns) - 1) / (2 * kTileF64) * kTileF64;
  return std::max<int64_t>(0, block - kOversampling);
}

SubspaceScratch CarveSubspace(int64_t columns, int64_t rank, Carver& carver) {
  SubspaceScratch scratch;
  scratch.columns = columns;
  scratch.width = Padded(columns);
  scratch.full = rank > LargestIteratedRank(columns);
  if (scratch.full) {
    scratch.eigen = CarveEigen(scratch.width, carver);
    return scratch;
  }
  const int64_t block = Padded(rank + kOversampling);
  scratch.orthonormal = CarveOrthonormal(block, columns, scratch.width, carver);
  scratch.rows = carver.Take<double>(block * scratch.width);
  scratch.images = carver.Take<double>(block * scratch.width);
  scratch.eigen = CarveEigen(block, carver);
  return scratch;
}

DominantVectors FindDominant(const SubspaceScratch& scratch, double* gram, cudaStream_t stream) {
  if (scratch.full) {
    SolveSymmetric(scratch.eigen, scratch.columns, kAnySweeps, gram, stream);
    return {.vectors = scratch.eigen.vectors, .order = scratch.eigen.order};
  }
  SubspaceScratch state = scratch;
  FillRows(state.orthonormal, state.rows, stream);
  for (int round = 0; round < kRounds; ++round) {
    MultiplyByGram(state, state.rows, gram, state.images, stream);
    std::swap(state.rows, state.images);
    const int calls = round + 1 < kRounds ? 1 : kFinalCalls;
    for (int call = 0; call < calls; ++call) {
      OrthonormaliseRows(state.orthonormal, state.rows, stream);
    }
  }
  return SolveProjection(state, gram, stream);
}

}  // namespace baton::kernels::cuda
