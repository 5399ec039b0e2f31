#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/core/carver.h"
#include "kernels/cuda/round_pairs.h"
#include "kernels/cuda/symmetric_eigen.h"

namespace baton::kernels::cuda {
namespace {

// Rows of a block, and of the matrix of a pair of blocks.
constexpr int kRows = 16;
constexpr int kPairRows = 2 * kRows;
constexpr int kThreads = 256;
constexpr int kStride = kPairRows + 1;
constexpr double kNegligible = 1e-14;
constexpr int kSweeps = 12;

struct EigenArgs {
  EigenScratch scratch;
  double* matrix = nullptr;
  int round = 0;

  __device__ RoundPair Blocks(uint32_t pair) const {
    return FindRoundPair(static_cast<int>(scratch.size / kRows), round, static_cast<int>(pair));
  }
};

// Row of the matrix that is row `r` of a pair's.
__device__ int64_t RowOfPair(const RoundPair& blocks, int r) {
  return int64_t{r < kRows ? blocks.low : blocks.high} * kRows + r % kRows;
}

// The vectors are the unit matrix's; one block adds up the trace, element by element in a fixed
// order.
__global__ void __launch_bounds__(kThreads) BeginKernel(const __grid_constant__ EigenArgs args) {
  __shared__ double sums[kThreads];
  const int64_t size = args.scratch.size;
  const int64_t row = blockIdx.x;
  for (int64_t c = threadIdx.x; c < size; c += kThreads) {
    args.scratch.vectors[row * size + c] = c == row ? 1.0 : 0.0;
  }
  if (blockIdx.x != 0) return;
  double sum = 0.0;
  for (int64_t i = threadIdx.x; i < size; i += kThreads) sum += args.matrix[i * size + i];
  sums[threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.x == 0) {
    double trace = 0.0;
    for (const double part : sums) trace += part;
    *args.scratch.trace = trace;
  }
}

struct PairMatrices {
  double m[kPairRows * kStride];  // the pair's matrix
  double j[kPairRows * kStride];  // the product of its rotations
  double cosines[kRows];
  double sines[kRows];
};

// The rotation that makes element (low, high) zero and leaves the larger eigenvalue in the lower
// row: a matrix that is sorted converges in fewer sweeps.
__device__ void FindRotation(PairMatrices& shared, int round, int pair, double negligible) {
  const RoundPair rows = FindRoundPair(kPairRows, round, pair);
  const double off = shared.m[rows.low * kStride + rows.high];
  double cosine = 1.0;
  double sine = 0.0;
  if (fabs(off) > negligible) {
    const double low = shared.m[rows.low * (kStride + 1)];
    const double high = shared.m[rows.high * (kStride + 1)];
    const double theta = (high - low) / (2.0 * off);
    const double tangent = copysign(1.0, theta) / (fabs(theta) + sqrt(theta * theta + 1.0));
    cosine = 1.0 / sqrt(tangent * tangent + 1.0);
    sine = tangent * cosine;
    if (low - tangent * off < high + tangent * off) {
      const double turned = -cosine;  // by a quarter more
      cosine = sine;
      sine = turned;
    }
  }
  shared.cosines[pair] = cosine;
  shared.sines[pair] = sine;
}

__device__ void Rotate(double& low, double& high, double cosine, double sine) {
  const double x = low;
  low = cosine * x - sine * high;
  high = sine * x + cosine * high;
}

// Rotates the four elements where rows of pair a meet columns of pair b: nobody else's.
__device__ void RotateMatrix(PairMatrices& shared, int round, int a, int b) {
  const RoundPair rows = FindRoundPair(kPairRows, round, a);
  const RoundPair columns = FindRoundPair(kPairRows, round, b);
  double* low = shared.m + rows.low * kStride;
  double* high = shared.m + rows.high * kStride;
  double x[2] = {low[columns.low], low[columns.high]};
  double y[2] = {high[columns.low], high[columns.high]};
  Rotate(x[0], y[0], shared.cosines[a], shared.sines[a]);
  Rotate(x[1], y[1], shared.cosines[a], shared.sines[a]);
  Rotate(x[0], x[1], shared.cosines[b], shared.sines[b]);
  Rotate(y[0], y[1], shared.cosines[b], shared.sines[b]);
  low[columns.low] = x[0];
  low[columns.high] = x[1];
  high[columns.low] = y[0];
  high[columns.high] = y[1];
}

// Block x finds rotations that bring the matrix of pair x of blocks near a diagonal one: a sweep
// over its rows.
__global__ void __launch_bounds__(kThreads) SweepPair(const __grid_constant__ EigenArgs args) {
  __shared__ PairMatrices shared;
  static_assert(kThreads == kRows * kRows);
  const int t = static_cast<int>(threadIdx.x);
  const RoundPair blocks = args.Blocks(blockIdx.x);
  const double negligible = kNegligible * *args.scratch.trace;
  bool moves = false;
  for (int at = t; at < kPairRows * kPairRows; at += kThreads) {
    const int r = at / kPairRows;
    const int c = at % kPairRows;
    const double element =
        args.matrix[RowOfPair(blocks, r) * args.scratch.size + RowOfPair(blocks, c)];
    shared.m[r * kStride + c] = element;
    shared.j[r * kStride + c] = r == c ? 1.0 : 0.0;
    moves = moves || (r != c && fabs(element) > negligible);
  }
  moves = __syncthreads_or(moves ? 1 : 0) != 0;
  for (int round = 0; moves && round < kPairRows - 1; ++round) {
    if (t < kRows) FindRotation(shared, round, t, negligible);
    __syncthreads();
    RotateMatrix(shared, round, t / kRows, t % kRows);
    for (int at = t; at < kRows * kPairRows; at += kThreads) {
      const int pair = at / kPairRows;
      const RoundPair rows = FindRoundPair(kPairRows, round, pair);
      Rotate(shared.j[rows.low * kStride + at % kPairRows],
             shared.j[rows.high * kStride + at % kPairRows],
             shared.cosines[pair],
             shared.sines[pair]);
    }
    __syncthreads();
  }
  double* rotations = args.scratch.rotations + int64_t{blockIdx.x} * kPairRows * kPairRows;
  for (int at = t; at < kPairRows * kPairRows; at += kThreads) {
    rotations[at] = shared.j[at / kPairRows * kStride + at % kPairRows];
  }
  if (t == 0) args.scratch.still[blockIdx.x] = moves ? 0 : 1;
}

struct ApplyShared {
  double tile[kPairRows * kStride];
  double left[kPairRows * kStride];
  double right[kPairRows * kStride];
};

// One 32 x 32 tile of rows of pair y: of the matrix, in the columns of pair x (block z 0), gets the
// rotations of both; of the vectors, in the columns from 32 x on, those of its rows.
__global__ void __launch_bounds__(kThreads) ApplyRotations(const __grid_constant__ EigenArgs args) {
  __shared__ ApplyShared shared;
  const bool of_matrix = blockIdx.z == 0;
  const EigenScratch& scratch = args.scratch;
  if (scratch.still[blockIdx.y] != 0 && (!of_matrix || scratch.still[blockIdx.x] != 0)) return;
  const int t = static_cast<int>(threadIdx.x);
  const RoundPair rows = args.Blocks(blockIdx.y);
  const RoundPair columns = args.Blocks(blockIdx.x);
  double* target = of_matrix ? args.matrix : scratch.vectors;
  const auto address = [&](int r, int c) {
    const int64_t column = of_matrix ? RowOfPair(columns, c) : int64_t{blockIdx.x} * kPairRows + c;
    return target + RowOfPair(rows, r) * scratch.size + column;
  };
  const double* left = scratch.rotations + int64_t{blockIdx.y} * kPairRows * kPairRows;
  const double* right = scratch.rotations + int64_t{blockIdx.x} * kPairRows * kPairRows;
  for (int at = t; at < kPairRows * kPairRows; at += kThreads) {
    const int r = at / kPairRows;
    const int c = at % kPairRows;
    shared.tile[r * kStride + c] = *address(r, c);
    shared.left[r * kStride + c] = left[at];
    shared.right[r * kStride + c] = right[at];
  }
  __syncthreads();
  constexpr int kResults = kPairRows * kPairRows / kThreads;
  const int c = t % kPairRows;  // rows r + 8 i of column c
  const int r = t / kPairRows;
  double results[kResults] = {};
  for (int k = 0; k < kPairRows; ++k) {
    const double x = shared.tile[k * kStride + c];
#pragma unroll
    for (int i = 0; i < kResults; ++i) {
      results[i] = fma(shared.left[(r + 8 * i) * kStride + k], x, results[i]);
    }
  }
  __syncthreads();
  if (of_matrix) {
#pragma unroll
    for (int i = 0; i < kResults; ++i) shared.tile[(r + 8 * i) * kStride + c] = results[i];
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kResults; ++i) {
      results[i] = 0.0;
      for (int k = 0; k < kPairRows; ++k) {
        results[i] =
            fma(shared.tile[(r + 8 * i) * kStride + k], shared.right[c * kStride + k], results[i]);
      }
    }
  }
#pragma unroll
  for (int i = 0; i < kResults; ++i) *address(r + 8 * i, c) = results[i];
}

// Ranks the diagonal's first `columns` elements; equal ones by their rows.
__global__ void __launch_bounds__(kThreads)
    OrderKernel(const __grid_constant__ EigenArgs args, int64_t columns) {
  const int64_t stride = args.scratch.size + 1;
  const int64_t row = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (row >= columns) return;
  const double mine = args.matrix[row * stride];
  int64_t rank = 0;
  for (int64_t other = 0; other < columns; ++other) {
    const double theirs = args.matrix[other * stride];
    // Not-a-numbers are equal to all, so that every rank is given once.
    const bool first = theirs > mine || (!(theirs < mine) && other < row);
    rank += first ? 1 : 0;
  }
  args.scratch.order[rank] = static_cast<int32_t>(row);
}

}  // namespace

EigenScratch CarveEigen(int64_t size, Carver& carver) {
  EigenScratch scratch;
  scratch.size = size;
  scratch.vectors = carver.Take<double>(size * size);
  scratch.rotations = carver.Take<double>(size / kPairRows * kPairRows * kPairRows);
  scratch.still = carver.Take<int32_t>(size / kPairRows);
  scratch.trace = carver.Take<double>(1);
  scratch.order = carver.Take<int32_t>(size);
  return scratch;
}

void SolveSymmetric(const EigenScratch& scratch,
                    int64_t columns,
                    double* matrix,
                    cudaStream_t stream) {
  EigenArgs args = {.scratch = scratch, .matrix = matrix};
  const auto pairs = static_cast<uint32_t>(scratch.size / kPairRows);
  const int rounds = static_cast<int>(scratch.size / kRows) - 1;
  BeginKernel<<<static_cast<uint32_t>(scratch.size), kThreads, 0, stream>>>(args);
  for (int sweep = 0; sweep < kSweeps; ++sweep) {
    for (int round = 0; round < rounds; ++round) {
      args.round = round;
      SweepPair<<<pairs, kThreads, 0, stream>>>(args);
      ApplyRotations<<<dim3(pairs, pairs, 2), kThreads, 0, stream>>>(args);
    }
  }
  const auto blocks = static_cast<uint32_t>((columns + kThreads - 1) / kThreads);
  OrderKernel<<<blocks, kThreads, 0, stream>>>(args, columns);
}

}  // namespace baton::kernels::cuda
