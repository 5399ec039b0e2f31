#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/core/carver.h"
#include "kernels/cuda/matmul_f64.cuh"
#include "kernels/cuda/orthonormal_rows.h"
#include "kernels/cuda/ptx_f64.cuh"

namespace baton::kernels::cuda {
namespace {

constexpr int kBlock = static_cast<int>(kTileF64);
constexpr int kThreads = kTileF64Threads;
constexpr int kFillThreads = 256;
// A square that is this small a share of what it was has nothing but rounding left.
constexpr double kDependent = 1e-12;
// Row strides in shared memory: odd where columns are read, 4 modulo 16 where fragments are.
constexpr int kFactorStride = kBlock + 1;
constexpr int kTileStride = kBlock + 4;

// Element `index` of the fixed numbers: SplitMix64 (Steele, Lea and Flood, 2014) as a number in
// [-1, 1).
__device__ double FixedNumber(int64_t index) {
  uint64_t z = (static_cast<uint64_t>(index) + 1) * 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  z ^= z >> 31;
  return static_cast<double>(z >> 11) * 0x1p-52 - 1.0;
}

__global__ void __launch_bounds__(kFillThreads)
    FillKernel(const __grid_constant__ OrthonormalScratch scratch, double* rows) {
  const int64_t column = int64_t{blockIdx.x} * kFillThreads + threadIdx.x;
  const int64_t row = blockIdx.y;
  if (column < scratch.width) {
    const int64_t index = row * scratch.columns + column;
    rows[row * scratch.width + column] = column < scratch.columns ? FixedNumber(index) : 0.0;
  }
}

// One step of the factorization [S | V] -> L^-1 [S | V], S = V V^T, for the 64 rows from 64 `block`
// on: the rows above are done and hold R = L^T in S.
struct FactorStep {
  OrthonormalScratch scratch;
  double* rows = nullptr;
  int64_t block = 0;

  __device__ int64_t first() const { return block * kTileF64; }
  // The block's columns of R: what the rows above take off it, transposed.
  __device__ OperandF64 Above() const { return {scratch.square + first(), scratch.rows}; }
};

// Inverts the Cholesky factor of the matrix that fills `m` ([64], rows kFactorStride apart, both
// halves), in place, by eliminating column after column of the matrix with the identity beside it:
// behind column c the identity's part takes the place of the matrix's. The half above the diagonal
// is left undefined. Rows of `dependent` ([64], in shared memory) get zeros.
__device__ void InvertFactor(double* m, const double* before, int32_t* dependent) {
  __shared__ double below[kBlock];  // of the factor's column, 0 up to the diagonal
  __shared__ double row[kBlock];    // behind column c: that column again; before: of the inverse
  const int t = static_cast<int>(threadIdx.x);
  for (int c = 0; c < kBlock; ++c) {
    if (t < kBlock) {
      const double pivot = m[c * kFactorStride + c];
      // Not greater: a NaN is dependent.
      const bool lost = !(pivot > kDependent * before[c]);
      const double inverse = lost ? 0.0 : 1.0 / sqrt(pivot);
      const double factor = m[t * kFactorStride + c] * inverse;
      below[t] = t > c ? factor : 0.0;
      row[t] = t > c ? factor : t < c ? m[c * kFactorStride + t] * inverse : inverse;
      if (t == c) dependent[c] = lost ? 1 : 0;
    }
    __syncthreads();
    for (int at = t; at < kBlock * kBlock; at += kThreads) {
      const int r = at / kBlock;
      const int q = at % kBlock;
      double* element = m + r * kFactorStride + q;
      if (r > c) {
        *element = (q == c ? 0.0 : *element) - below[r] * row[q];
      } else if (r == c && q <= c) {
        *element = row[q];
      }
    }
    __syncthreads();
  }
}

// Factors the block on the diagonal and writes the inverse of its factor. One block.
__global__ void __launch_bounds__(kThreads) FactorBlock(const __grid_constant__ FactorStep step) {
  __shared__ union {
    TileStageF64 stage;
    double m[kBlock * kFactorStride];
  } shared;
  __shared__ double before[kBlock];
  __shared__ int32_t dependent[kBlock];
  const int64_t stride = step.scratch.rows;
  TileResultsF64 results;
  MultiplyTileF64<OperandOrder::kDepth, OperandOrder::kDepth>(
      step.Above(), step.Above(), step.first(), shared.stage, results);
  const double* square = step.scratch.square + step.first() * stride + step.first();
  ForEachPairF64(results, [&](int r, int c, const double(&pair)[2]) {
    for (int i = 0; i < 2; ++i) {
      const double product = square[r * stride + c + i];
      shared.m[r * kFactorStride + c + i] = product - pair[i];
      if (r == c + i) before[r] = product;
    }
  });
  __syncthreads();
  InvertFactor(shared.m, before, dependent);
  for (int at = static_cast<int>(threadIdx.x); at < kBlock * kBlock; at += kThreads) {
    const int r = at / kBlock;
    const int c = at % kBlock;
    step.scratch.inverse[at] = c <= r ? shared.m[r * kFactorStride + c] : 0.0;
  }
  if (threadIdx.x < kBlock) step.scratch.dependent[threadIdx.x] = dependent[threadIdx.x];
}

// results = inverse x tile ([64], rows kTileStride apart, in shared memory).
__device__ void MultiplyByInverse(const double* inverse,
                                  const double* tile,
                                  TileResultsF64& results) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int warp = static_cast<int>(threadIdx.x / 32);
  const double* rows = inverse + (warp / 2 * 16 + lane / 4) * kBlock + lane % 4;
  const double* columns = tile + lane % 4 * kTileStride + warp % 2 * 32 + lane / 4;
  for (int depth = 0; depth < kBlock; depth += 4) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const double a = rows[8 * i * kBlock + depth];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        MultiplyAddF64(results.acc[i][j], a, columns[depth * kTileStride + 8 * j]);
      }
    }
  }
}

// Eliminates the rows above from 64 columns of the step's rows: block x has those of S right of the
// diagonal, then those of V.
__global__ void __launch_bounds__(kThreads)
    EliminateAbove(const __grid_constant__ FactorStep step) {
  __shared__ union {
    TileStageF64 stage;
    double tile[kBlock * kTileStride];
  } shared;
  const OrthonormalScratch& scratch = step.scratch;
  const int64_t right = scratch.rows / kTileF64 - step.block - 1;  // tiles of S
  const bool of_square = blockIdx.x < right;
  const int64_t stride = of_square ? scratch.rows : scratch.width;
  const int64_t column =
      of_square ? (step.block + 1 + blockIdx.x) * kTileF64 : (blockIdx.x - right) * kTileF64;
  double* top = (of_square ? scratch.square : step.rows) + column;
  double* target = top + step.first() * stride;
  TileResultsF64 results;
  MultiplyTileF64<OperandOrder::kDepth, OperandOrder::kDepth>(
      step.Above(), {top, stride}, step.first(), shared.stage, results);
  ForEachPairF64(results, [&](int r, int c, double(&pair)[2]) {
    for (int i = 0; i < 2; ++i) {
      shared.tile[r * kTileStride + c + i] = target[r * stride + c + i] - pair[i];
      pair[i] = 0.0;
    }
  });
  __syncthreads();
  MultiplyByInverse(scratch.inverse, shared.tile, results);
  ForEachPairF64(results, [&](int r, int c, const double(&pair)[2]) {
    const bool replaced = !of_square && scratch.dependent[r] != 0;
    for (int i = 0; i < 2; ++i) {
      const int64_t at = column + c + i;
      const bool fixed = replaced && at < scratch.columns;
      target[r * stride + c + i] =
          fixed ? FixedNumber((step.first() + r) * scratch.columns + at) : pair[i];
    }
  });
}

}  // namespace

OrthonormalScratch CarveOrthonormal(int64_t rows, int64_t columns, int64_t width, Carver& carver) {
  OrthonormalScratch scratch;
  scratch.rows = rows;
  scratch.width = width;
  scratch.columns = columns;
  scratch.square = carver.Take<double>(rows * rows);
  scratch.inverse = carver.Take<double>(kTileF64 * kTileF64);
  scratch.dependent = carver.Take<int32_t>(kTileF64);
  return scratch;
}

void FillRows(const OrthonormalScratch& scratch, double* rows, cudaStream_t stream) {
  const dim3 grid(static_cast<uint32_t>((scratch.width + kFillThreads - 1) / kFillThreads),
                  static_cast<uint32_t>(scratch.rows));
  FillKernel<<<grid, kFillThreads, 0, stream>>>(scratch, rows);
}

void OrthonormaliseRows(const OrthonormalScratch& scratch, double* rows, cudaStream_t stream) {
  LaunchMatmulF64<OperandOrder::kRows>({.a = rows,
                                        .a_stride = scratch.width,
                                        .b = rows,
                                        .b_stride = scratch.width,
                                        .out = scratch.square,
                                        .out_stride = scratch.rows,
                                        .rows = scratch.rows,
                                        .columns = scratch.rows,
                                        .depth = scratch.width},
                                       stream);
  const int64_t blocks = scratch.rows / kTileF64;
  for (int64_t block = 0; block < blocks; ++block) {
    const FactorStep step = {.scratch = scratch, .rows = rows, .block = block};
    const auto tiles = static_cast<uint32_t>(blocks - block - 1 + scratch.width / kTileF64);
    FactorBlock<<<1, kThreads, 0, stream>>>(step);
    EliminateAbove<<<tiles, kThreads, 0, stream>>>(step);
  }
}

}  // namespace baton::kernels::cuda
