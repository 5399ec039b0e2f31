#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "kernels/core/carver.h"
#include "kernels/cuda/alike_problems.cuh"
#include "kernels/cuda/allow_shared.h"
#include "kernels/cuda/device_code.h"
#include "kernels/cuda/factor_triangle.cuh"
#include "kernels/cuda/matmul_f64.cuh"
#include "kernels/cuda/matmul_f64_cluster.cuh"
#include "kernels/cuda/orthonormal_rows.h"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/ptx_cluster.cuh"
#include "kernels/cuda/ptx_tile.cuh"
#include "kernels/cuda/runtime/device_queue.h"
#include "kernels/cuda/runtime/early_launch.h"

namespace baton::kernels::cuda {
namespace {

constexpr int kThreads = kTileF64Threads;
static_assert(kThreads == kTriangleThreads);
// Rows that are factored at once.
constexpr int64_t kStepRows = MostTriangleRows(kHopperCode);
// Blocks of a cluster that multiply rows of 64 columns: there are few tiles.
constexpr int Splits(bool hopper_code) { return hopper_code ? 4 : 1; }
constexpr int kSplits = Splits(kHopperCode);
// Blocks of a cluster that eliminate rows from 64 columns, each 64 rows of a step.
constexpr int Eliminators(bool hopper_code) {
  return hopper_code ? MostTriangleRows(true) / static_cast<int>(kTileF64) : 1;
}
constexpr int kEliminators = Eliminators(kHopperCode);
// Between the rows of a factor's inverse.
constexpr int64_t kInverseStride = MostTriangleRows(true);

using Stages = TileStagesF64<kHopperCode>;

// Of a block that factors: products first, then the triangle.
template <bool kHopper>
union FactorShared {
  TileStagesF64<kHopper> stages;
  TriangleOf<MostTriangleRows(kHopper)> triangle;
};

constexpr size_t FactorBytes(bool hopper_code) {
  return hopper_code ? sizeof(FactorShared<true>) : sizeof(FactorShared<false>);
}

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

// Cluster (x, y, z) computes tile x of row y of tiles of S = V V^T of problem z. Of rows that are
// factored at once only the half on and left of the diagonal is read, and what is right of them.
__global__ void __launch_bounds__(kThreads, 2)
    MultiplyRows(const __grid_constant__ OrthonormalScratch first,
                 const double* first_rows,
                 Calls calls) {
  extern __shared__ __align__(16) std::byte memory[];
  const OrthonormalScratch scratch = ScratchOf(first, blockIdx.z);
  const double* rows = OfProblem(first.problems, blockIdx.z, first_rows);
  WaitForPredecessors();
  const int64_t row = blockIdx.y * kTileF64;
  const int64_t column = blockIdx.x / kSplits * kTileF64;
  if (row / kStepRows == column / kStepRows ? column > row : column < row) return;
  if (calls == Calls::kSteep && *scratch.steep == 0) return;
  MultiplyTileByCluster<kSplits, OperandOrder::kRows, OperandOrder::kRows>(
      {rows + row * scratch.width, scratch.width},
      {rows + column * scratch.width, scratch.width},
      scratch.width,
      *reinterpret_cast<Stages*>(memory),
      [&](int r, int c, double2 product) {
        double* at = scratch.square + (row + r) * scratch.rows + column + c;
        *reinterpret_cast<double2*>(at) = product;
      });
}

template <int kBlocks>
__device__ void SyncBlocks() {
  if constexpr (kBlocks == 1) {
    __syncthreads();
  } else {
    ClusterSync();
  }
}

// One step of the factorization [S | V] -> L^-1 [S | V], S = V V^T, for the rows from `first` on
// that are factored at once: the rows above are done and hold R = L^T in S.
struct FactorStep {
  OrthonormalScratch scratch;
  int64_t first = 0;

  __device__ int64_t rows() const { return min(kStepRows, scratch.rows - first); }
  __device__ int64_t tiles() const { return rows() / kTileF64; }
  // Of the factor's block on the diagonal.
  __device__ double* inverse() const { return scratch.inverse + first * kInverseStride; }

  // Takes what the rows above make of it off tile `tile` of the step's rows in 64 columns, whose
  // rows are `stride` apart. All threads of the block call this and what follows.
  __device__ void SubtractAbove(int64_t tile,
                                double* columns,
                                int64_t stride,
                                Stages& stages) const {
    const int64_t row = first + tile * kTileF64;
    TileResultsF64 results;
    MultiplyTileF64<OperandOrder::kDepth, OperandOrder::kDepth>(
        {scratch.square + row, scratch.rows}, {columns, stride}, first, stages, results);
    ForEachPairF64(results, [&](int r, int c, const double(&pair)[2]) {
      auto* at = reinterpret_cast<double2*>(columns + (row + r) * stride + c);
      *at = make_double2(at->x - pair[0], at->y - pair[1]);
    });
  }
  // The step's rows of 64 columns become L^-1 of them, or what replace(row, column, element) makes
  // of it, by a cluster of kBlocks: the last rows first, as they depend on all.
  template <int kBlocks, typename Function>
  __device__ void Eliminate(double* columns,
                            int64_t stride,
                            Stages& stages,
                            const Function& replace) const {
    const int64_t last = tiles() - 1 - (kBlocks == 1 ? 0 : ClusterRank());
    if (first > 0) {
      for (int64_t tile = last; tile >= 0; tile -= kBlocks) {
        SubtractAbove(tile, columns, stride, stages);
      }
      SyncBlocks<kBlocks>();
    }
#pragma unroll 1
    for (int64_t turn = 0; turn < tiles(); turn += kBlocks) {
      const int64_t row = (last - turn) * kTileF64;
      TileResultsF64 results;
      if (row >= 0) {
        MultiplyTileF64<OperandOrder::kRows, OperandOrder::kDepth>(
            {inverse() + row * kInverseStride, kInverseStride},
            {columns + first * stride, stride},
            row + kTileF64,
            stages,
            results);
      }
      SyncBlocks<kBlocks>();  // everyone has read the rows
      if (row < 0) continue;
      ForEachPairF64(results, [&](int r, int c, const double(&pair)[2]) {
        const int64_t at = first + row + r;
        *reinterpret_cast<double2*>(columns + at * stride + c) =
            make_double2(replace(at, c, pair[0]), replace(at, c + 1, pair[1]));
      });
    }
    SyncBlocks<kBlocks>();  // they are read below
  }

  // The step's block on the diagonal to the triangle, once the rows above are taken off it.
  __device__ void Load(FactorShared<kHopperCode>& shared) const {
    double* diagonal = scratch.square + first * (scratch.rows + 1);
    double before = 0.0;
    const auto t = static_cast<int64_t>(threadIdx.x);
    if (t < rows()) before = diagonal[t * (scratch.rows + 1)];
    if (first > 0) {
      __syncthreads();
      for (int64_t right = 0; right < tiles(); ++right) {
        for (int64_t tile = right; tile < tiles(); ++tile) {
          double* columns = scratch.square + first + right * kTileF64;
          SubtractAbove(tile, columns, scratch.rows, shared.stages);
        }
      }
      __syncthreads();
    }
    Triangle& triangle = shared.triangle;
    if (t < rows()) triangle.before[t] = before;
    const auto columns = static_cast<int>(rows() / kTriangleTile);
    if (t == 0) triangle.tiles = columns, triangle.steep = 0;
    const int lane = static_cast<int>(t % 32);
    int at = static_cast<int>(t / 32);
    for (int row = 0; row < columns; ++row) {
      for (; at <= row; at += kThreads / 32) {
        const double* from = diagonal + (row * scratch.rows + at) * kTriangleTile;
        TriangleTile& tile = triangle.Tile(row, at);
#pragma unroll
        for (int turn = 0; turn < 4; ++turn) {
          const int r = turn * 4 + lane / 8;
          const int c = lane % 8 * 2;
          CopyAsync16(tile.at + tile.Place(r, c), from + r * scratch.rows + c);
        }
      }
      at -= row + 1;
    }
    CommitCopies();
    WaitForCopies<0>();
    __syncthreads();
  }
  // The inverse, with zeros right of it up to a multiple of 64 columns, and which rows are
  // dependent, from the triangle.
  __device__ void Store(const Triangle& triangle) const {
    constexpr int kOfTile = static_cast<int>(kTileF64) / kTriangleTile;
    const auto t = static_cast<int>(threadIdx.x);
    const int lane = t % 32;
    int at = t / 32;
    for (int row = 0; row < triangle.tiles; ++row) {
      const int columns = (row / kOfTile + 1) * kOfTile;
      for (; at < columns; at += kThreads / 32) {
        double* to = inverse() + (row * kInverseStride + at) * kTriangleTile;
        const TriangleTile& tile = triangle.Tile(row, min(at, row));
#pragma unroll
        for (int turn = 0; turn < 4; ++turn) {
          const int r = turn * 4 + lane / 8;
          const int c = lane % 8 * 2;
          const auto pair = *reinterpret_cast<const double2*>(tile.at + tile.Place(r, c));
          *reinterpret_cast<double2*>(to + r * kInverseStride + c) =
              at <= row ? pair : make_double2(0.0, 0.0);
        }
      }
      at -= columns;
    }
    if (t < rows()) scratch.dependent[first + t] = triangle.dependent[t];
    __syncthreads();
  }
};

// Factors S: the inverse of every step's block on the diagonal, and R right of them. Block x has
// problem x.
__global__ void __launch_bounds__(kThreads)
    FactorSquare(const __grid_constant__ OrthonormalScratch first, Calls calls) {
  extern __shared__ __align__(16) std::byte memory[];
  auto& shared = *reinterpret_cast<FactorShared<kHopperCode>*>(memory);
  WaitForPredecessors();
  FactorStep step{.scratch = ScratchOf(first, blockIdx.x)};
  const OrthonormalScratch& scratch = step.scratch;
  if (calls == Calls::kSteep && *scratch.steep == 0) return;
  bool steep = false;
#pragma unroll 1
  for (; step.first < scratch.rows; step.first += kStepRows) {
    step.Load(shared);
    InvertFactor(shared.triangle);
    steep = steep || shared.triangle.steep != 0;
    step.Store(shared.triangle);
    for (int64_t column = step.first + step.rows(); column < scratch.rows; column += kTileF64) {
      step.Eliminate<1>(
          scratch.square + column, scratch.rows, shared.stages, [](int64_t, int, double element) {
            return element;
          });
    }
  }
  if (calls == Calls::kAll && threadIdx.x == 0) *scratch.steep = steep ? 1 : 0;
}

// Eliminates the rows above from 64 columns of V, step after step: cluster (x, y) has tile x of
// problem y.
__global__ void __launch_bounds__(kThreads, 2)
    EliminateColumns(const __grid_constant__ OrthonormalScratch first,
                     double* first_rows,
                     Calls calls) {
  extern __shared__ __align__(16) std::byte memory[];
  WaitForPredecessors();
  FactorStep step{.scratch = ScratchOf(first, blockIdx.y)};
  const OrthonormalScratch& scratch = step.scratch;
  if (calls == Calls::kSteep && *scratch.steep == 0) return;
  const int64_t column = blockIdx.x / kEliminators * kTileF64;
  double* columns = OfProblem(first.problems, blockIdx.y, first_rows) + column;
  const auto replace = [&](int64_t row, int c, double element) {
    if (scratch.dependent[row] == 0 || column + c >= scratch.columns) return element;
    return FixedNumber(scratch, row, column + c);
  };
#pragma unroll 1
  for (; step.first < scratch.rows; step.first += kStepRows) {
    step.Eliminate<kEliminators>(
        columns, scratch.width, *reinterpret_cast<Stages*>(memory), replace);
  }
}

}  // namespace

OrthonormalScratch CarveOrthonormal(int64_t rows, int64_t columns, int64_t width, Carver& carver) {
  OrthonormalScratch scratch;
  scratch.rows = rows;
  scratch.width = width;
  scratch.columns = columns;
  scratch.square = carver.Take<double>(rows * rows);
  scratch.inverse = carver.Take<double>(rows * kInverseStride);
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
  const bool hopper_code = queue.device().has_hopper_code;
  const auto splits = static_cast<uint32_t>(Splits(hopper_code));
  const size_t stages = TileStagesBytesF64(hopper_code);
  const size_t factor = FactorBytes(hopper_code);
  // A refusal shows when the op ends.
  (void)AllowShared(MultiplyRows, stages);
  (void)AllowShared(FactorSquare, factor);
  (void)AllowShared(EliminateColumns, stages);
  const dim3 squares(side * splits, side, problems);
  (void)LaunchClustersEarly(
      queue, MultiplyRows, squares, splits, kThreads, stages, scratch, rows, calls);
  (void)LaunchEarly(queue, FactorSquare, problems, kThreads, factor, scratch, calls);
  const auto eliminators = static_cast<uint32_t>(Eliminators(hopper_code));
  const dim3 columns(tiles * eliminators, problems);
  (void)LaunchClustersEarly(
      queue, EliminateColumns, columns, eliminators, kThreads, stages, scratch, rows, calls);
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
