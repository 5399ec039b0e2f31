// Products of fp64 matrices on the matrix units, a tile of 64 x 64 results for each block. All
// sizes are multiples of 64: matrices are padded with zeros.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/ptx_f64.cuh"

namespace baton::kernels::cuda {

inline constexpr int64_t kTileF64 = 64;
// Threads of a block: 4 x 2 warps with 16 x 32 results each.
inline constexpr int kTileF64Threads = 256;

// How an operand lies in memory: a row for each row (column) of the result, [64][depth], or a row
// for each step of depth, [depth][64].
enum class OperandOrder { kRows, kDepth };

// A 64 x depth (or depth x 64) part of a matrix.
struct OperandF64 {
  const double* data = nullptr;
  int64_t stride = 0;  // between its rows in memory
};

// One thread's results: acc[i][j] has two neighbouring columns of a row (ForEachPairF64).
struct TileResultsF64 {
  double acc[2][4][2] = {};
};

// fn(row, column, results of column and column + 1) for a thread's results of a tile.
template <typename Function>
__device__ inline void ForEachPairF64(TileResultsF64& results, const Function& fn) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int warp = static_cast<int>(threadIdx.x / 32);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      fn(warp / 2 * 16 + 8 * i + lane / 4, warp % 2 * 32 + 8 * j + lane % 4 * 2, results.acc[i][j]);
    }
  }
}

namespace matmul_f64_internal {

// Steps of depth in shared memory at once.
inline constexpr int kDepth = 16;
// Strides that are 4 modulo 16 spread what a warp reads over all banks.
inline constexpr int kRowStride = kDepth + 4;
inline constexpr int kDepthStride = static_cast<int>(kTileF64) + 4;
inline constexpr int kStageElements = static_cast<int>(kTileF64) * kRowStride;

// Four neighbouring elements of one stage of an operand.
struct FourF64 {
  double2 low;
  double2 high;
};

template <OperandOrder kOrder>
__device__ inline FourF64 LoadFour(const OperandF64& operand, int64_t depth) {
  const int64_t t = threadIdx.x;
  const double* at = kOrder == OperandOrder::kRows
                         ? operand.data + t / 4 * operand.stride + depth + t % 4 * 4
                         : operand.data + (depth + t / 16) * operand.stride + t % 16 * 4;
  const auto* pairs = reinterpret_cast<const double2*>(at);
  return {pairs[0], pairs[1]};
}

template <OperandOrder kOrder>
__device__ inline void StoreFour(const FourF64& four, double* stage) {
  const int t = static_cast<int>(threadIdx.x);
  double* at = kOrder == OperandOrder::kRows ? stage + t / 4 * kRowStride + t % 4 * 4
                                             : stage + t / 16 * kDepthStride + t % 16 * 4;
  reinterpret_cast<double2*>(at)[0] = four.low;
  reinterpret_cast<double2*>(at)[1] = four.high;
}

// The lane's element of the fragment that starts at `row` and `depth` of a stage.
template <OperandOrder kOrder>
__device__ inline double Fragment(const double* stage, int row, int depth) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  return kOrder == OperandOrder::kRows ? stage[(row + lane / 4) * kRowStride + depth + lane % 4]
                                       : stage[(depth + lane % 4) * kDepthStride + row + lane / 4];
}

template <OperandOrder kOrderA, OperandOrder kOrderB>
__device__ inline void MultiplyStage(const double* a, const double* b, TileResultsF64& results) {
  const int warp = static_cast<int>(threadIdx.x / 32);
#pragma unroll
  for (int depth = 0; depth < kDepth; depth += 4) {
    double rows[2];
    double columns[4];
#pragma unroll
    for (int i = 0; i < 2; ++i) rows[i] = Fragment<kOrderA>(a, warp / 2 * 16 + 8 * i, depth);
#pragma unroll
    for (int j = 0; j < 4; ++j) columns[j] = Fragment<kOrderB>(b, warp % 2 * 32 + 8 * j, depth);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) MultiplyAddF64(results.acc[i][j], rows[i], columns[j]);
    }
  }
}

}  // namespace matmul_f64_internal

// Shared memory of MultiplyTileF64.
struct TileStageF64 {
  alignas(16) double a[matmul_f64_internal::kStageElements];
  alignas(16) double b[matmul_f64_internal::kStageElements];
};

// results += A B over `depth`, a multiple of 16 (0 too). All threads of the block call it; the
// stage is free for other use when it returns. The loads of a stage are under way while the one
// before is multiplied.
template <OperandOrder kOrderA, OperandOrder kOrderB>
__device__ inline void MultiplyTileF64(const OperandF64& a,
                                       const OperandF64& b,
                                       int64_t depth,
                                       TileStageF64& stage,
                                       TileResultsF64& results) {
  using namespace matmul_f64_internal;  // NOLINT(google-build-using-namespace)
  if (depth == 0) return;
  FourF64 next_a = LoadFour<kOrderA>(a, 0);
  FourF64 next_b = LoadFour<kOrderB>(b, 0);
  for (int64_t begin = 0; begin < depth; begin += kDepth) {
    StoreFour<kOrderA>(next_a, stage.a);
    StoreFour<kOrderB>(next_b, stage.b);
    __syncthreads();
    if (begin + kDepth < depth) {
      next_a = LoadFour<kOrderA>(a, begin + kDepth);
      next_b = LoadFour<kOrderB>(b, begin + kDepth);
    }
    MultiplyStage<kOrderA, kOrderB>(stage.a, stage.b, results);
    __syncthreads();
  }
}

// C = A B, with B [depth][columns] (kDepth) or its transpose (kRows). Strides are between rows in
// memory.
struct MatmulF64 {
  const double* a = nullptr;  // [rows][depth]
  int64_t a_stride = 0;
  const double* b = nullptr;
  int64_t b_stride = 0;
  double* out = nullptr;  // [rows][columns]
  int64_t out_stride = 0;
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t depth = 0;
};

// Block (x, y) computes tile x of row y of tiles.
template <OperandOrder kOrderB>
__global__ void __launch_bounds__(kTileF64Threads)
    MatmulF64Kernel(const __grid_constant__ MatmulF64 args) {
  __shared__ TileStageF64 stage;
  const int64_t row = blockIdx.y * kTileF64;
  const int64_t column = blockIdx.x * kTileF64;
  const OperandF64 a = {args.a + row * args.a_stride, args.a_stride};
  const OperandF64 b = {args.b + (kOrderB == OperandOrder::kRows ? column * args.b_stride : column),
                        args.b_stride};
  TileResultsF64 results;
  MultiplyTileF64<OperandOrder::kRows, kOrderB>(a, b, args.depth, stage, results);
  ForEachPairF64(results, [&](int r, int c, const double(&pair)[2]) {
    double* at = args.out + (row + r) * args.out_stride + column + c;
    *reinterpret_cast<double2*>(at) = make_double2(pair[0], pair[1]);
  });
}

template <OperandOrder kOrderB>
inline void LaunchMatmulF64(const MatmulF64& args, cudaStream_t stream) {
  const dim3 tiles(static_cast<uint32_t>(args.columns / kTileF64),
                   static_cast<uint32_t>(args.rows / kTileF64));
  MatmulF64Kernel<kOrderB><<<tiles, kTileF64Threads, 0, stream>>>(args);
}

}  // namespace baton::kernels::cuda
