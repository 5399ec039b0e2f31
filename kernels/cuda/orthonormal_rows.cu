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
// Rows whose squares all keep a larger share are orthonormal to 1e-8 after one call.
constexpr double kSteepShare = 1e-8;
// Parts of the columns whose products are summed by blocks of their own: there are few tiles.
constexpr int kParts = 4;
// A row's stride in shared memory: 4 modulo 16, where fragments are read.
constexpr int kTileStride = kBlock + 4;

using Stages = TileStagesF64<2>;

// The arrays of problem `index`.
__device__ OrthonormalScratch ScratchOf(const OrthonormalScratch& first, int64_t index) {
  OrthonormalScratch scratch = first;
  scratch.square = OfProblem(first.problems, index, first.square);
  scratch.inverse = OfProblem(first.problems, index, first.inverse);
  scratch.dependent = OfProblem(first.problems, index, first.dependent);
  scratch.steep = OfProblem(first.problems, index, first.steep);
  return scratch;
}

// Which calls do something: all, or those for problems that the call before has found to be steep.
enum class Calls { kAll, kSteep };

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
    MultiplyRows(const __grid_constant__ OrthonormalScratch scratch,
                 const double* rows,
                 Calls calls) {
  __shared__ Stages stages;
  WaitForPredecessors();
  if (blockIdx.x < blockIdx.y) return;
  const int64_t row = blockIdx.y * kTileF64;
  const int64_t column = blockIdx.x * kTileF64;
  const int64_t depth = scratch.width / kParts;
  const int64_t problem = blockIdx.z / kParts;
  if (calls == Calls::kSteep && *ScratchOf(scratch, problem).steep == 0) return;
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
  int64_t block = 0;

  // Of problem `index`.
  __device__ FactorStep(const OrthonormalScratch& first, int64_t index)
      : scratch(ScratchOf(first, index)) {}

  __device__ int64_t first() const { return block * kTileF64; }
  // An element of S that is still the parts MultiplyRows has left.
  __device__ double Product(int64_t row, int64_t column) const {
    double sum = 0.0;
#pragma unroll
    for (int64_t part = 0; part < kParts; ++part) {
      sum += scratch.square[(part * scratch.rows + row) * scratch.rows + column];
    }
    return sum;
  }
  // The same of the step's rows and 64 columns from `column` on.
  __device__ TileResultsF64 Products(int64_t column) const {
    TileResultsF64 products;
    ForEachPairF64(products, [&](int r, int c, double(&pair)[2]) {
      for (int i = 0; i < 2; ++i) pair[i] = Product(first() + r, column + c + i);
    });
    return products;
  }
  // The block's columns of R: what the rows above take off it, transposed.
  __device__ OperandF64 Above() const { return {scratch.square + first(), scratch.rows}; }
  // Of the factor's block on the diagonal.
  __device__ double* inverse() const { return scratch.inverse + first() * kTileF64; }
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

// Elements of a symmetric matrix where two neighbouring rows meet.
struct Corner {
  double first;   // on the diagonal
  double across;  // of the first row, in the column of the second
  double second;
};

struct FactorShared {
  double rows[2][2][kBlock];  // of the matrix: two rows that are eliminated, and the next two's
  Corner corners[2];          // of the rows behind these
  double before[kBlock];      // the diagonal as it came
  int32_t dependent[kBlock];  // set by InvertFactor
  int32_t steep;              // set to 1 by InvertFactor where a row is
};

// 1 / sqrt(pivot), 0 of a dependent row.
struct Pivot {
  double inverse;
  bool lost;
  bool steep;

  // `before`: the element as it came.
  __device__ Pivot(double pivot, double before) {
    // Not greater: a NaN is dependent.
    lost = !(pivot > fmax(kDependent * before, DBL_MIN));
    steep = !(pivot > kSteepShare * before);
    const double root = InverseRoot(pivot);
    inverse = lost ? 0.0 : root;
  }
};

// Two rows whose columns are eliminated together.
struct PivotPair {
  Pivot first;
  double factor;  // of the second row to the first
  Pivot second;

  // `before`: their elements on the diagonal as they came.
  __device__ PivotPair(const Corner& corner, const double* before)
      : first(corner.first, before[0]),
        factor(corner.across * first.inverse),
        second(fma(-factor, factor, corner.second), before[1]) {}

  // What rows of these elements take off others, and what of a later row is taken off it.
  struct Factors {
    double first;
    double second;
  };
  __device__ Factors Of(double of_first, double of_second) const {
    const double scaled = of_first * first.inverse;
    return {scaled, fma(-factor, scaled, of_second) * second.inverse};
  }
  // The corner of two rows behind the pair's, once it is eliminated from them.
  __device__ Corner Behind(const Corner& corner,
                           const Factors& of_first,
                           const Factors& of_second) const {
    const auto without = [](double x, const Factors& a, const Factors& b) {
      return fma(-a.second, b.second, fma(-a.first, b.first, x));
    };
    return {.first = without(corner.first, of_first, of_first),
            .across = without(corner.across, of_first, of_second),
            .second = without(corner.second, of_second, of_second)};
  }
};

// Inverts the Cholesky factor of a symmetric matrix in place, by eliminating column after column of
// the matrix with the identity beside it, two between synchronisations: behind them the identity's
// part takes the place of the matrix's. The half above the diagonal is left undefined. By symmetry
// a pivot's row is its column too, so that it is all that threads tell each other, but for the
// corner behind: from it each thread finds the next pivots' roots, which are most of a turn's
// latency, while the matrix is updated. Dependent rows get zeros. `corner` is the first two rows'.
__device__ void InvertFactor(const Corner& corner, SpreadMatrix& m, FactorShared& shared) {
  constexpr int kSide = SpreadMatrix::kSide;
  constexpr int kCount = SpreadMatrix::kCount;
  const int row = SpreadMatrix::row();
  const int column = SpreadMatrix::column();
  PivotPair pivots(corner, shared.before);
#pragma unroll
  for (int part = 0; part < kCount; ++part) {
#pragma unroll 1
    for (int side = 0; side < kSide; side += 2) {
      const int c = part * kSide + side;
      double(&rows)[2][kBlock] = shared.rows[side / 2 % 2];
      Corner& next_corner = shared.corners[side / 2 % 2];
      const int of_pair = row - side;
      if (of_pair == 0 || of_pair == 1) {
#pragma unroll
        for (int j = 0; j < kCount; ++j) rows[of_pair][column + j * kSide] = m.at[part][j];
      }
      const int next_row = row - (side + 2) % kSide;
      const int next_column = column - (side + 2) % kSide;
      if (next_row >= 0 && next_row <= next_column && next_column <= 1) {
        const int below = part + 1 < kCount ? part + 1 : part;
        const double element = row < 2 ? m.at[below][below] : m.at[part][part];
        (next_column == 0 ? next_corner.first
         : next_row == 0  ? next_corner.across
                          : next_corner.second) = element;
      }
      __syncthreads();  // everyone is done with the rows before the last too
      if (threadIdx.x == 0) {
        shared.dependent[c] = pivots.first.lost ? 1 : 0;
        shared.dependent[c + 1] = pivots.second.lost ? 1 : 0;
        if (pivots.first.steep || pivots.second.steep) shared.steep = 1;
      }
      const PivotPair pair = pivots;
      const int next = c + 2 < kBlock ? c + 2 : c;
      pivots = PivotPair(pair.Behind(next_corner,
                                     pair.Of(rows[0][next], rows[1][next]),
                                     pair.Of(rows[0][next + 1], rows[1][next + 1])),
                         shared.before + next);
      PivotPair::Factors scaled[kCount];  // the pair's rows, with the identity's ones
#pragma unroll
      for (int j = 0; j < kCount; ++j) {
        const int at = column + j * kSide;
        scaled[j] = pair.Of(at == c ? 1.0 : rows[0][at], at == c ? 0.0 : rows[1][at]);
        if (at == c + 1) scaled[j].second = pair.second.inverse;
        if (j == part && (at == c || at == c + 1)) {
#pragma unroll
          for (int i = part; i < kCount; ++i) m.at[i][j] = 0.0;
        }
      }
#pragma unroll
      for (int i = part; i < kCount; ++i) {
        const bool below = i > part || of_pair > 1;
        const PivotPair::Factors factors =
            pair.Of(rows[0][row + i * kSide], rows[1][row + i * kSide]);
#pragma unroll
        for (int j = 0; j < kCount; ++j) {
          // The second pivot's column is taken from matrix to identity behind the first.
          const double first = column + j * kSide == c + 1 ? 0.0 : scaled[j].first;
          const double updated =
              fma(-factors.second, scaled[j].second, fma(-factors.first, first, m.at[i][j]));
          if (below) {
            m.at[i][j] = updated;
          } else if (i == part && of_pair == 0) {
            m.at[i][j] = scaled[j].first;
          } else if (i == part && of_pair == 1) {
            m.at[i][j] = scaled[j].second;
          }
        }
      }
    }
  }
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

union EliminateShared {
  Stages stages;
  double tile[kBlock * kTileStride];
};

// The rows above taken off `before`, which are the step's rows of 64 columns, times the inverse:
// L^-1 of them. `above` are the columns of the rows above. All threads of a block call it.
__device__ TileResultsF64 Eliminate(const FactorStep& step,
                                    const TileResultsF64& before,
                                    const OperandF64& above,
                                    EliminateShared& shared) {
  TileResultsF64 results;
  MultiplyTileF64<OperandOrder::kDepth, OperandOrder::kDepth>(
      step.Above(), above, step.first(), shared.stages, results);
  const InverseRows inverse(step.inverse());
  results.SubtractFrom(before);
  ForEachPairF64(results, [&](int r, int c, double(&pair)[2]) {
    for (int i = 0; i < 2; ++i) {
      shared.tile[r * kTileStride + c + i] = pair[i];
      pair[i] = 0.0;
    }
  });
  __syncthreads();
  inverse.Multiply(shared.tile, results);
  __syncthreads();  // the tile is used again
  return results;
}

// Factors the step's block on the diagonal and writes the inverse of its factor. All threads of a
// block call it.
__device__ void FactorBlock(const FactorStep& step,
                            EliminateShared& products,
                            FactorShared& shared) {
  TileResultsF64 before = step.Products(step.first());
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
  InvertFactor({.first = products.tile[0],
                .across = products.tile[1],
                .second = products.tile[kTileStride + 1]},
               m,
               shared);
  for_each([&](int r, int c, double& at) { step.inverse()[r * kBlock + c] = c <= r ? at : 0.0; });
  __syncthreads();
  if (threadIdx.x < kBlock) {
    step.scratch.dependent[step.first() + threadIdx.x] = shared.dependent[threadIdx.x];
  }
}

// Factors S: the inverse of every block on the diagonal, and R above them. Block x has problem x.
__global__ void __launch_bounds__(kThreads)
    FactorSquare(const __grid_constant__ OrthonormalScratch scratch, Calls calls) {
  __shared__ EliminateShared products;
  __shared__ FactorShared shared;
  WaitForPredecessors();
  FactorStep step(scratch, blockIdx.x);
  if (calls == Calls::kSteep && *step.scratch.steep == 0) return;
  if (threadIdx.x == 0) shared.steep = 0;
  const int64_t blocks = scratch.rows / kTileF64;
#pragma unroll 1
  for (; step.block < blocks; ++step.block) {
    FactorBlock(step, products, shared);
    __syncthreads();  // the inverse is there
#pragma unroll 1
    for (int64_t right = step.block + 1; right < blocks; ++right) {
      const int64_t column = right * kTileF64;
      double* top = step.scratch.square + column;
      TileResultsF64 results =
          Eliminate(step, step.Products(column), {top, scratch.rows}, products);
      ForEachPairF64(results, [&](int r, int c, const double(&pair)[2]) {
        *reinterpret_cast<double2*>(top + (step.first() + r) * scratch.rows + c) =
            make_double2(pair[0], pair[1]);
      });
    }
    __syncthreads();  // what is read of R below is there
  }
  if (calls == Calls::kAll && threadIdx.x == 0) *step.scratch.steep = shared.steep;
}

// Eliminates the rows above from 64 columns of V, block of rows after block: block (x, y) has tile
// x of problem y.
__global__ void __launch_bounds__(kThreads)
    EliminateColumns(const __grid_constant__ OrthonormalScratch scratch,
                     double* first_rows,
                     Calls calls) {
  __shared__ EliminateShared shared;
  WaitForPredecessors();
  FactorStep step(scratch, blockIdx.y);
  if (calls == Calls::kSteep && *step.scratch.steep == 0) return;
  const int64_t column = blockIdx.x * kTileF64;
  double* top = OfProblem(scratch.problems, blockIdx.y, first_rows) + column;
  const int64_t blocks = scratch.rows / kTileF64;
#pragma unroll 1
  for (; step.block < blocks; ++step.block) {
    double* target = top + step.first() * scratch.width;
    TileResultsF64 before;
    ForEachPairF64(before, [&](int r, int c, double(&pair)[2]) {
      const double2 from = *reinterpret_cast<const double2*>(target + r * scratch.width + c);
      pair[0] = from.x, pair[1] = from.y;
    });
    TileResultsF64 results = Eliminate(step, before, {top, scratch.width}, shared);
    ForEachPairF64(results, [&](int r, int c, double(&pair)[2]) {
      if (step.scratch.dependent[step.first() + r] != 0) {
        for (int i = 0; i < 2; ++i) {
          const int64_t at = column + c + i;
          if (at < scratch.columns) pair[i] = FixedNumber(scratch, step.first() + r, at);
        }
      }
      *reinterpret_cast<double2*>(target + r * scratch.width + c) = make_double2(pair[0], pair[1]);
    });
    __syncthreads();  // the rows are read below
  }
}

}  // namespace

OrthonormalScratch CarveOrthonormal(int64_t rows, int64_t columns, int64_t width, Carver& carver) {
  OrthonormalScratch scratch;
  scratch.rows = rows;
  scratch.width = width;
  scratch.columns = columns;
  scratch.square = carver.Take<double>(kParts * rows * rows);
  scratch.inverse = carver.Take<double>(rows * kTileF64);
  scratch.dependent = carver.Take<int32_t>(rows);
  scratch.steep = carver.Take<int32_t>(1);
  return scratch;
}

namespace {

void Orthonormalise(const DeviceQueue& queue,
                    const OrthonormalScratch& scratch,
                    double* rows,
                    Calls calls) {
  const auto side = static_cast<uint32_t>(scratch.rows / kTileF64);
  const auto tiles = static_cast<uint32_t>(scratch.width / kTileF64);
  const auto problems = static_cast<uint32_t>(scratch.problems.count);
  // A refusal shows when the op ends.
  (void)LaunchEarly(
      queue, MultiplyRows, dim3(side, side, kParts * problems), kThreads, 0, scratch, rows, calls);
  (void)LaunchEarly(queue, FactorSquare, problems, kThreads, 0, scratch, calls);
  (void)LaunchEarly(
      queue, EliminateColumns, dim3(tiles, problems), kThreads, 0, scratch, rows, calls);
}

}  // namespace

void OrthonormaliseRows(const DeviceQueue& queue, const OrthonormalScratch& scratch, double* rows) {
  Orthonormalise(queue, scratch, rows, Calls::kAll);
}

void FinishOrthonormalRows(const DeviceQueue& queue,
                           const OrthonormalScratch& scratch,
                           double* rows) {
  Orthonormalise(queue, scratch, rows, Calls::kAll);
  Orthonormalise(queue, scratch, rows, Calls::kSteep);
}

}  // namespace baton::kernels::cuda
