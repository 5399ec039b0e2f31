#include <cuda_runtime.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "absl/status/status.h"

#include "kernels/core/carver.h"
#include "kernels/cuda/alike_problems.cuh"
#include "kernels/cuda/allow_shared.h"
#include "kernels/cuda/device_code.h"
#include "kernels/cuda/dominant_subspace.h"
#include "kernels/cuda/matmul_f64.cuh"
#include "kernels/cuda/matmul_f64_cluster.cuh"
#include "kernels/cuda/orthonormal_rows.h"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/runtime/device_queue.h"
#include "kernels/cuda/runtime/early_launch.h"
#include "kernels/cuda/runtime/launch_cache.h"
#include "kernels/cuda/sketch_rows.h"
#include "kernels/cuda/symmetric_eigen.h"
#include "kernels/cuda/warp.cuh"

namespace baton::kernels::cuda {
namespace {

constexpr int kThreads = kTileF64Threads;
constexpr int kOrderThreads = 256;
// Vectors beyond the rank: without them the last directions converge slowly.
constexpr int64_t kOversampling = 32;
// Up to this width a full solve takes no longer than the iteration.
constexpr int64_t kFullWidth = 128;
// Rounds that multiply by the matrix, the first of them signs (SketchRows), which bring the rows
// into order; two more sharpen the edge, by polynomials of the second and the third degree. Of 1024
// columns at rank 160 they leave out 0.1% too much of a flat spectrum and of those that fall as a
// power of i, 0.2% of one that falls exponentially, and 0.3% (at most 0.5% in 40 problems) of 200
// equal directions, whose edge is the hardest to find; of 170 equal ones at most 1.0%
// (simulations).
constexpr int kPlainRounds = 3;
// The cut is the quotient of a row this share of the rank behind it, half of the oversampling at
// most: the first quotient that is not taken is often above the last eigenvalue that is wanted,
// which the polynomials then make small.
constexpr int64_t kRowsToCut = 24;

using Stages = TileStagesF64<kHopperCode>;
// Blocks of a cluster that compute a tile of a product. A block that holds a multiprocessor for
// long is in the way of kernels of a higher rank, which begin late there; four blocks are shorter
// still, but starting and adding up take too much of them (docs/kernels/shadowkv.md).
constexpr int Splits(bool hopper_code) { return hopper_code ? 2 : 1; }
constexpr int kSplits = Splits(kHopperCode);

int64_t Padded(int64_t count) { return (count + kTileF64 - 1) / kTileF64 * kTileF64; }

// The arrays of another problem than the first.
__device__ SubspaceScratch ScratchOf(const SubspaceScratch& first, int64_t index) {
  const AlikeProblems& problems = first.orthonormal.problems;
  SubspaceScratch scratch = first;
  scratch.rows = OfProblem(problems, index, first.rows);
  scratch.images = OfProblem(problems, index, first.images);
  scratch.quotients = OfProblem(problems, index, first.quotients);
  scratch.cut = OfProblem(problems, index, first.cut);
  scratch.order = OfProblem(problems, index, first.order);
  return scratch;
}

// A cluster's tile of a product of rows and the Gram matrix: cluster x of row y has tile x of row y
// of tiles.
struct ProductTile {
  int64_t row = blockIdx.y * kTileF64;
  int64_t column = blockIdx.x / kSplits * kTileF64;

  // fn(row of the tile, column of it, results of column and the next one), of the block's share.
  template <typename Function>
  __device__ void Multiply(const SubspaceScratch& scratch,
                           const double* rows,
                           const double* gram,
                           const Function& fn) const {
    extern __shared__ __align__(16) std::byte memory[];
    MultiplyTileByCluster<kSplits, OperandOrder::kRows, OperandOrder::kDepth>(
        {rows + row * scratch.width, scratch.width},
        {gram + column, scratch.width},
        scratch.width,
        *reinterpret_cast<Stages*>(memory),
        fn);
  }
  // Two neighbouring elements of the tile.
  __device__ double2* Pair(const SubspaceScratch& scratch, double* rows, int r, int c) const {
    return reinterpret_cast<double2*>(rows + (row + r) * scratch.width + column + c);
  }
};

// images = rows x gram, and what the tile's columns add to the rows' Rayleigh quotients. Cluster
// (x, y, z) has a tile of problem z.
__global__ void __launch_bounds__(kThreads, 2)
    MultiplyByGram(const __grid_constant__ SubspaceScratch first, const double* first_gram) {
  const SubspaceScratch scratch = ScratchOf(first, blockIdx.z);
  const double* gram = OfProblem(first.orthonormal.problems, blockIdx.z, first_gram);
  WaitForPredecessors();
  const ProductTile tile;
  tile.Multiply(scratch, scratch.rows, gram, [&](int r, int c, double2 product) {
    *tile.Pair(scratch, scratch.images, r, c) = product;
    const double2 of_row = *tile.Pair(scratch, scratch.rows, r, c);
    double sum = product.x * of_row.x + product.y * of_row.y;
    for (int mask = 1; mask < kWarpLanes; mask *= 2) sum += __shfl_xor_sync(kAllLanes, sum, mask);
    if (c == 0) {
      scratch.quotients[tile.column / kTileF64 * scratch.orthonormal.rows + tile.row + r] = sum;
    }
  });
}

// Ranks the rows by their quotients, equal ones by their place, and finds the cut, which is that of
// row cut_row. Takes a double of dynamic shared memory for each row. Block (x, y) has rows of
// problem y.
__global__ void __launch_bounds__(kOrderThreads)
    OrderRows(const __grid_constant__ SubspaceScratch first) {
  extern __shared__ __align__(16) double sums[];
  const SubspaceScratch scratch = ScratchOf(first, blockIdx.y);
  const int64_t rows = scratch.orthonormal.rows;
  WaitForPredecessors();
  for (int64_t row = threadIdx.x; row < rows; row += kOrderThreads) {
    double sum = 0.0;
    for (int64_t part = 0; part < scratch.width / kTileF64; ++part) {
      sum += scratch.quotients[part * rows + row];
    }
    sums[row] = sum;
  }
  __syncthreads();
  const int64_t row = int64_t{blockIdx.x} * kOrderThreads + threadIdx.x;
  if (row >= rows) return;
  const double mine = sums[row];
  int64_t rank = 0;
  for (int64_t other = 0; other < rows; ++other) {
    const double theirs = sums[other];
    // Not-a-numbers are equal to all, so that every rank is given once.
    const bool before = theirs > mine || (!(theirs < mine) && other < row);
    rank += before ? 1 : 0;
  }
  scratch.order[rank] = static_cast<int32_t>(row);
  if (rank == scratch.cut_row) *scratch.cut = mine;
}

// A factor of a Chebyshev polynomial that is small on eigenvalues up to the cut, from 0 on or, of
// the third degree, from a fifth of it: the target becomes source x (gram - linear cut) + constant
// cut^2 target.
struct FilterFactor {
  double linear = 0.0;
  double constant = 0.0;
};
// T_2(2 g / cut - 1) is that much times g (g - cut) + cut^2 / 8; T_3(2.5 g / cut - 1.5) that much
// times (g (g - 1.2 cut) + 0.24 cut^2) (g - 0.6 cut).
constexpr FilterFactor kSecondDegree = {.linear = 1.0, .constant = 1.0 / 8.0};
constexpr FilterFactor kThirdDegree = {.linear = 1.2, .constant = 0.24};
constexpr FilterFactor kThirdDegreeLast = {.linear = 0.6, .constant = 0.0};

__global__ void __launch_bounds__(kThreads, 2)
    FilterRows(const __grid_constant__ SubspaceScratch first,
               const double* first_gram,
               double* first_source,
               double* first_target,
               FilterFactor factor) {
  const AlikeProblems& problems = first.orthonormal.problems;
  const SubspaceScratch scratch = ScratchOf(first, blockIdx.z);
  const double* gram = OfProblem(problems, blockIdx.z, first_gram);
  double* source = OfProblem(problems, blockIdx.z, first_source);
  double* target = OfProblem(problems, blockIdx.z, first_target);
  WaitForPredecessors();
  const ProductTile tile;
  const double cut = *scratch.cut;
  const double linear = factor.linear * cut;
  const double constant = factor.constant * cut * cut;
  tile.Multiply(scratch, source, gram, [&](int r, int c, double2 product) {
    const double2 from = *tile.Pair(scratch, source, r, c);
    double2* to = tile.Pair(scratch, target, r, c);
    *to = make_double2(product.x - linear * from.x + constant * to->x,
                       product.y - linear * from.y + constant * to->y);
  });
}

// Launches a kernel whose clusters have the tiles of a product of rows and the Gram matrix.
template <typename... Params, typename... Args>
void LaunchProduct(const DeviceQueue& queue,
                   const SubspaceScratch& scratch,
                   void (*kernel)(Params...),
                   Args&&... args) {
  const bool hopper_code = queue.device().has_hopper_code;
  const auto splits = static_cast<uint32_t>(Splits(hopper_code));
  const dim3 grid(static_cast<uint32_t>(scratch.width / kTileF64) * splits,
                  static_cast<uint32_t>(scratch.orthonormal.rows / kTileF64),
                  static_cast<uint32_t>(scratch.orthonormal.problems.count));
  // A refusal shows when the op ends.
  (void)LaunchClustersEarly(queue,
                            kernel,
                            grid,
                            splits,
                            kThreads,
                            TileStagesBytesF64(hopper_code),
                            scratch,
                            std::forward<Args>(args)...);
}

void Multiply(const DeviceQueue& queue, const SubspaceScratch& scratch, const double* gram) {
  LaunchProduct(queue, scratch, MultiplyByGram, gram);
}

// The images of the rows, the rows' order and the cut.
void Apply(const DeviceQueue& queue, const SubspaceScratch& scratch, const double* gram) {
  const int64_t rows = scratch.orthonormal.rows;
  Multiply(queue, scratch, gram);
  (void)LaunchEarly(queue,
                    OrderRows,
                    dim3(static_cast<uint32_t>((rows + kOrderThreads - 1) / kOrderThreads),
                         static_cast<uint32_t>(scratch.orthonormal.problems.count)),
                    kOrderThreads,
                    static_cast<size_t>(rows) * sizeof(double),
                    scratch);
}

// target = source x (gram - linear cut) + constant cut^2 target.
void Filter(const DeviceQueue& queue,
            const SubspaceScratch& scratch,
            const double* gram,
            double* source,
            double* target,
            const FilterFactor& factor) {
  LaunchProduct(queue, scratch, FilterRows, gram, source, target, factor);
}

// What FindDominant launches where it iterates. The rows, in order, are scratch.rows in the end.
void Iterate(const DeviceQueue& queue, const SubspaceScratch& scratch, const double* gram) {
  SubspaceScratch state = scratch;
  std::swap(state.rows, state.images);
  SketchRows({.problems = state.orthonormal.problems,
              .rows = state.orthonormal.rows,
              .width = state.width,
              .columns = state.columns},
             gram,
             state.rows,
             queue.stream());
  OrthonormaliseRows(queue, state.orthonormal, state.rows);
  for (int round = 1; round < kPlainRounds; ++round) {
    Multiply(queue, state, gram);
    std::swap(state.rows, state.images);
    OrthonormaliseRows(queue, state.orthonormal, state.rows);
  }
  Apply(queue, state, gram);
  Filter(queue, state, gram, state.images, state.rows, kSecondDegree);
  OrthonormaliseRows(queue, state.orthonormal, state.rows);
  Apply(queue, state, gram);
  Filter(queue, state, gram, state.images, state.rows, kThirdDegree);
  Filter(queue, state, gram, state.rows, state.images, kThirdDegreeLast);
  std::swap(state.rows, state.images);
  static_assert(kPlainRounds % 2 == 1);  // so that these are scratch.rows
  FinishOrthonormalRows(queue, state.orthonormal, state.rows);
  Apply(queue, state, gram);
}

}  // namespace

int64_t LargestIteratedRank(int64_t columns) {
  // Twice the block, a multiple of 64, is less than the width.
  if (columns <= kFullWidth || columns > kMostSketchColumns) return 0;
  const int64_t block = (Padded(columns) - 1) / (2 * kTileF64) * kTileF64;
  return std::max<int64_t>(0, block - kOversampling);
}

SubspaceScratch CarveSubspace(int64_t columns, int64_t rank, Carver& carver) {
  SubspaceScratch scratch;
  scratch.columns = columns;
  scratch.rank = rank;
  scratch.cut_row = rank + std::min(rank / kRowsToCut, kOversampling / 2);
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
  scratch.quotients = carver.Take<double>(scratch.width / kTileF64 * block);
  scratch.cut = carver.Take<double>(1);
  scratch.order = carver.Take<int32_t>(block);
  return scratch;
}

DominantVectors FindDominant(const DeviceQueue& queue,
                             const SubspaceScratch& scratch,
                             double* gram) {
  if (scratch.full) {
    SolveSymmetric(scratch.eigen, scratch.columns, gram, queue.stream());
    return {.vectors = scratch.eigen.vectors, .order = scratch.eigen.order};
  }
  // Refusals show when the op ends.
  const size_t stages = TileStagesBytesF64(queue.device().has_hopper_code);
  (void)AllowShared(MultiplyByGram, stages);
  (void)AllowShared(FilterRows, stages);
  // The scratch follows from its first address and these sizes.
  const AlikeProblems& problems = scratch.orthonormal.problems;
  const std::array<int64_t, 6> key = {reinterpret_cast<int64_t>(scratch.rows),
                                      scratch.columns,
                                      scratch.rank,
                                      problems.count,
                                      static_cast<int64_t>(problems.stride),
                                      reinterpret_cast<int64_t>(gram)};
  (void)queue.launches().Launch(std::as_bytes(std::span(key)), [&] {
    Iterate(queue, scratch, gram);
    return absl::OkStatus();
  });
  return {.vectors = scratch.rows, .order = scratch.order};
}

}  // namespace baton::kernels::cuda
