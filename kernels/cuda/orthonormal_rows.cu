#include <cuda_runtime.h>

#include <cfloat>
#include <cstdint>

#include "kernels/core/carver.h"
#include "kernels/cuda/alike_problems.cuh"
#include "kernels/cuda/matmul_f64.cuh"
#include "kernels/cuda/orthonormal_rows.h"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/ptx_f64.cuh"
#include "kernels/cuda/runtime/device_queue.h"
#include "kernels/cuda/runtime/early_launch.h"

namespace baton::kernels::cuda {
namespace {

constexpr int kBlock = static_cast<int>(kTileF64);
constexpr int kThreads = kTileF64Threads;
// A square that is this small a share of what it was has nothing but rounding left.
constexpr double kDependent = 1e-14;
// Parts of the columns whose products are summed by blocks of their own: there are few tiles.
constexpr int kParts = 4;
// A row's stride in shared memory: 4 modulo 16, where fragments are read.
constexpr int kTileStride = kBlock + 4;

using Stages = TileStagesF64<2>;

// Column `column` of row `row` of fixed rows of length about 1: SplitMix64 (Steele, Lea and Flood,
// 2014) as numbers of mean 0 and variance 1 / columns.
__device__ double FixedNumber(const OrthonormalScratch& scratch, int64_t row, int64_t column) {
  const int64_t index = row * scratch.columns + column;
  uint64_t z = (static_cast<uint64_t>(index) + 1) * 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  z ^= z >> 31;
  const double number = static_cast<double>(z >> 11) * 0x1p-52 - 1.0;
  return number * sqrt(3.0 / static_cast<double>(scratch.columns));
}

// Block (x, y, z) computes tile x of row y of tiles of S = V V^T over part z % kParts of the
// columns of problem z / kParts: on and right of the diagonal, which is all that the factorization
// reads.
__global__ void __launch_bounds__(kThreads, 2)
    MultiplyRows(const __grid_constant__ OrthonormalScratch scratch, const double* rows) {
  __shared__ Stages stages;
  WaitForPredecessors();
  if (blockIdx.x < blockIdx.y) return;
  const int64_t row = blockIdx.y * kTileF64;
  const int64_t column = blockIdx.x * kTileF64;
  const int64_t depth = scratch.width / kParts;
  const int64_t problem = blockIdx.z / kParts;
  const int64_t index = blockIdx.z % kParts;
  const double* part = OfProblem(scratch.problems, problem, rows) + index * depth;
  TileResultsF64 results;
  MultiplyTileF64<OperandOrder::kRows, OperandOrder::kRows>(
      {part + row * scratch.width, scratch.width},
      {part + column * scratch.width, scratch.width},
      depth,
      stages,
      results);
  double* square =
      OfProblem(scratch.problems, problem, scratch.square) + index * scratch.rows * scratch.rows;
  ForEachPairF64(results, [&](int r, int c, const double(&pair)[2]) {
    double* at = square + (row + r) * scratch.rows + column + c;
    *reinterpret_cast<double2*>(at) = make_double2(pair[0], pair[1]);
  });
}

// One step of the factorization [S | V] -> L^-1 [S | V], S = V V^T, for the 64 rows from 64 `block`
// on: the rows above are done and hold R = L^T in S.
struct FactorStep {
  OrthonormalScratch scratch;
  double* rows = nullptr;
  int64_t block = 0;

  __device__ int64_t first() const { return block * kTileF64; }
  // The same of another problem than the first.
  __device__ FactorStep OfProblem(int64_t index) const {
    FactorStep step = *this;
    step.scratch.square = cuda::OfProblem(scratch.problems, index, scratch.square);
    step.scratch.inverse = cuda::OfProblem(scratch.problems, index, scratch.inverse);
    step.scratch.dependent = cuda::OfProblem(scratch.problems, index, scratch.dependent);
    step.rows = cuda::OfProblem(scratch.problems, index, rows);
    return step;
  }
  // An element of S that is still the parts MultiplyRows has left.
  __device__ double Product(int64_t row, int64_t column) const {
    double sum = 0.0;
#pragma unroll
    for (int64_t part = 0; part < kParts; ++part) {
      sum += scratch.square[(part * scratch.rows + row) * scratch.rows + column];
    }
    return sum;
  }
  // The block's columns of R: what the rows above take off it, transposed.
  __device__ OperandF64 Above() const { return {scratch.square + first(), scratch.rows}; }
};

// A 64 x 64 matrix over the threads of a block: a thread has of it the rows row() + 16 i and the
// columns column() + 16 j, so that all have work until the last rows are eliminated.
struct SpreadMatrix {
  static constexpr int kSide = 16;
  static constexpr int kCount = kBlock / kSide;
  double at[kCount][kCount];

  __device__ static int row() { return static_cast<int>(threadIdx.x) / kSide; }
  __device__ static int column() { return static_cast<int>(threadIdx.x) % kSide; }
};

struct FactorShared {
  double rows[2][kBlock];     // of the matrix: the pivot's and the next one's
  double diagonals[2];        // elements on the diagonal behind these
  double before[kBlock];      // the diagonal as it came
  int32_t dependent[kBlock];  // set by InvertFactor
};

// 1 / sqrt(pivot), 0 of a dependent row.
struct Pivot {
  double inverse;
  bool lost;

  // `before`: the element as it came.
  __device__ Pivot(double pivot, double before) {
    // Not greater: a NaN is dependent.
    lost = !(pivot > fmax(kDependent * before, DBL_MIN));
    const double root = InverseRoot(pivot);
    inverse = lost ? 0.0 : root;
  }
};

// Inverts the Cholesky factor of a symmetric matrix in place, by eliminating column after column of
// the matrix with the identity beside it: behind column c the identity's part takes the place of
// the matrix's. The half above the diagonal is left undefined. By symmetry the pivot's row is its
// column too, so that it is all that threads tell each other, but for the next element on the
// diagonal: from it each thread finds the next pivot's root while the matrix is updated. Dependent
// rows get zeros. `first` is the first element.
__device__ void InvertFactor(double first, SpreadMatrix& m, FactorShared& shared) {
  constexpr int kSide = SpreadMatrix::kSide;
  constexpr int kCount = SpreadMatrix::kCount;
  const int row = SpreadMatrix::row();
  const int column = SpreadMatrix::column();
  Pivot pivot(first, shared.before[0]);
#pragma unroll
  for (int part = 0; part < kCount; ++part) {
#pragma unroll 1
    for (int side = 0; side < kSide; ++side) {
      const int c = part * kSide + side;
      double* pivots = shared.rows[c % 2];
      if (row == side) {
#pragma unroll
        for (int j = 0; j < kCount; ++j) pivots[column + j * kSide] = m.at[part][j];
      }
      if (row == column && row == (side + 1) % kSide) {
        const int below = part + 1 < kCount ? part + 1 : part;
        shared.diagonals[c % 2] = row == 0 ? m.at[below][below] : m.at[part][part];
      }
      __syncthreads();  // everyone is done with the row before the last too
      if (threadIdx.x == 0) shared.dependent[c] = pivot.lost ? 1 : 0;
      const double inverse = pivot.inverse;
      const int next = c + 1 < kBlock ? c + 1 : c;
      const double next_factor = pivots[next] * inverse;
      pivot = Pivot(fma(-next_factor, next_factor, shared.diagonals[c % 2]), shared.before[next]);
      double scaled[kCount];  // of the pivot's row, with the identity's one
#pragma unroll
      for (int j = 0; j < kCount; ++j) {
        const bool own = j == part && column == side;
        scaled[j] = (own ? 1.0 : pivots[column + j * kSide]) * inverse;
        if (own) {
#pragma unroll
          for (int i = part; i < kCount; ++i) m.at[i][j] = 0.0;
        }
      }
#pragma unroll
      for (int i = part; i < kCount; ++i) {
        const bool below = i > part || row > side;
        const double factor = below ? pivots[row + i * kSide] * inverse : 0.0;
#pragma unroll
        for (int j = 0; j < kCount; ++j) {
          m.at[i][j] = i == part && row == side ? scaled[j] : fma(-factor, scaled[j], m.at[i][j]);
        }
      }
    }
  }
}

// Factors the block on the diagonal and writes the inverse of its factor. Block x has problem x.
__global__ void __launch_bounds__(kThreads) FactorBlock(const __grid_constant__ FactorStep first) {
  __shared__ union {
    Stages stages;
    double tile[kBlock * kTileStride];
  } products;
  __shared__ FactorShared shared;
  WaitForPredecessors();
  const FactorStep step = first.OfProblem(blockIdx.x);
  TileResultsF64 before;
  ForEachPairF64(before, [&](int r, int c, double(&pair)[2]) {
    for (int i = 0; i < 2; ++i) pair[i] = step.Product(step.first() + r, step.first() + c + i);
  });
  TileResultsF64 results;
  MultiplyTileF64<OperandOrder::kDepth, OperandOrder::kDepth>(
      step.Above(), step.Above(), step.first(), products.stages, results);
  results.SubtractFrom(before);
  ForEachPairF64(results, [&](int r, int c, const double(&pair)[2]) {
    for (int i = 0; i < 2; ++i) products.tile[r * kTileStride + c + i] = pair[i];
  });
  ForEachPairF64(before, [&](int r, int c, const double(&pair)[2]) {
    for (int i = 0; i < 2; ++i) {
      if (r == c + i) shared.before[r] = pair[i];
    }
  });
  __syncthreads();
  SpreadMatrix m;
  const auto for_each = [&](const auto& fn) {
#pragma unroll
    for (int i = 0; i < SpreadMatrix::kCount; ++i) {
#pragma unroll
      for (int j = 0; j < SpreadMatrix::kCount; ++j) {
        fn(SpreadMatrix::row() + i * SpreadMatrix::kSide,
           SpreadMatrix::column() + j * SpreadMatrix::kSide,
           m.at[i][j]);
      }
    }
  };
  for_each([&](int r, int c, double& at) { at = products.tile[r * kTileStride + c]; });
  InvertFactor(products.tile[0], m, shared);
  for_each(
      [&](int r, int c, double& at) { step.scratch.inverse[r * kBlock + c] = c <= r ? at : 0.0; });
  __syncthreads();
  if (threadIdx.x < kBlock) step.scratch.dependent[threadIdx.x] = shared.dependent[threadIdx.x];
}

// What a lane needs of the factor's inverse to multiply by it.
struct InverseRows {
  double at[kBlock / 16][8];  // operands of 16 steps of depth

  __device__ explicit InverseRows(const double* inverse) {
    const int lane = static_cast<int>(threadIdx.x % 32);
    const int first_row = TileResultsF64::first_row();
    const double* rows = inverse + (first_row + lane / 4) * kBlock + lane % 4;
#pragma unroll
    for (int i = 0; i < kBlock / 2; ++i) at[i / 8][i % 8] = rows[i % 2 * 8 * kBlock + i / 2 * 4];
  }

  // results = inverse x tile ([64], rows kTileStride apart, in shared memory).
  __device__ void Multiply(const double* tile, TileResultsF64& results) const {
    const int lane = static_cast<int>(threadIdx.x % 32);
    const double* columns = tile + lane % 4 * kTileStride + results.first_column() + lane / 4;
#pragma unroll
    for (int depth = 0; depth < kBlock; depth += 16) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        double b[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) b[i] = columns[(depth + 4 * i) * kTileStride + 8 * j];
        MultiplyAddF64(results.acc[j], at[depth / 16], b);
      }
    }
  }
};

// Eliminates the rows above from 64 columns of the step's rows: block (x, y) has those of S right
// of the diagonal, then those of V, of problem y. The rows as they are come while those above are
// multiplied, the factor's inverse all at once.
__global__ void __launch_bounds__(kThreads)
    EliminateAbove(const __grid_constant__ FactorStep first) {
  __shared__ union {
    Stages stages;
    double tile[kBlock * kTileStride];
  } shared;
  WaitForPredecessors();
  const FactorStep step = first.OfProblem(blockIdx.y);
  const OrthonormalScratch& scratch = step.scratch;
  const int64_t right = scratch.rows / kTileF64 - step.block - 1;  // tiles of S
  const bool of_square = blockIdx.x < right;
  const int64_t stride = of_square ? scratch.rows : scratch.width;
  const int64_t column =
      of_square ? (step.block + 1 + blockIdx.x) * kTileF64 : (blockIdx.x - right) * kTileF64;
  double* top = (of_square ? scratch.square : step.rows) + column;
  double* target = top + step.first() * stride;
  TileResultsF64 before;
  ForEachPairF64(before, [&](int r, int c, double(&pair)[2]) {
    for (int i = 0; i < 2; ++i) {
      pair[i] =
          of_square ? step.Product(step.first() + r, column + c + i) : target[r * stride + c + i];
    }
  });
  int32_t dependent[2];  // of the lane's rows, 8 apart
  for (int i = 0; i < 2; ++i) {
    const int row = TileResultsF64::first_row() + static_cast<int>(threadIdx.x % 32) / 4;
    dependent[i] = scratch.dependent[row + 8 * i];
  }
  TileResultsF64 results;
  MultiplyTileF64<OperandOrder::kDepth, OperandOrder::kDepth>(
      step.Above(), {top, stride}, step.first(), shared.stages, results);
  const InverseRows inverse(scratch.inverse);
  results.SubtractFrom(before);
  ForEachPairF64(results, [&](int r, int c, double(&pair)[2]) {
    for (int i = 0; i < 2; ++i) {
      shared.tile[r * kTileStride + c + i] = pair[i];
      pair[i] = 0.0;
    }
  });
  __syncthreads();
  inverse.Multiply(shared.tile, results);
  ForEachPairF64(results, [&](int r, int c, const double(&pair)[2]) {
    const bool replaced = !of_square && dependent[r / 8 % 2] != 0;
    for (int i = 0; i < 2; ++i) {
      const int64_t at = column + c + i;
      const bool fixed = replaced && at < scratch.columns;
      target[r * stride + c + i] = fixed ? FixedNumber(scratch, step.first() + r, at) : pair[i];
    }
  });
}

}  // namespace

OrthonormalScratch CarveOrthonormal(int64_t rows, int64_t columns, int64_t width, Carver& carver) {
  OrthonormalScratch scratch;
  scratch.rows = rows;
  scratch.width = width;
  scratch.columns = columns;
  scratch.square = carver.Take<double>(kParts * rows * rows);
  scratch.inverse = carver.Take<double>(kTileF64 * kTileF64);
  scratch.dependent = carver.Take<int32_t>(kTileF64);
  return scratch;
}

void OrthonormaliseRows(const DeviceQueue& queue, const OrthonormalScratch& scratch, double* rows) {
  const int64_t blocks = scratch.rows / kTileF64;
  const auto side = static_cast<uint32_t>(blocks);
  const auto problems = static_cast<uint32_t>(scratch.problems.count);
  // A refusal shows when the op ends.
  (void)LaunchEarly(
      queue, MultiplyRows, dim3(side, side, kParts * problems), kThreads, 0, scratch, rows);
  for (int64_t block = 0; block < blocks; ++block) {
    const FactorStep step = {.scratch = scratch, .rows = rows, .block = block};
    const auto tiles = static_cast<uint32_t>(blocks - block - 1 + scratch.width / kTileF64);
    (void)LaunchEarly(queue, FactorBlock, problems, kThreads, 0, step);
    (void)LaunchEarly(queue, EliminateAbove, dim3(tiles, problems), kThreads, 0, step);
  }
}

}  // namespace baton::kernels::cuda
