// Products of fp64 matrices on the matrix units, a tile of 64 x 64 results for each block. All
// sizes are multiples of 64: matrices are padded with zeros.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/ptx_f64.cuh"
#include "kernels/cuda/ptx_tile.cuh"

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

// One thread's results: acc[j][i] has two neighbouring columns of a row (ForEachPairF64).
struct TileResultsF64 {
  double acc[4][2][2] = {};
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
      fn(warp / 2 * 16 + 8 * i + lane / 4, warp % 2 * 32 + 8 * j + lane % 4 * 2, results.acc[j][i]);
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

// Starts the copy of one stage of an operand.
template <OperandOrder kOrder>
__device__ inline void CopyStage(const OperandF64& operand, int64_t depth, double* stage) {
  const int t = static_cast<int>(threadIdx.x);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int pair = t + i * kTileF64Threads;  // of elements
    if (kOrder == OperandOrder::kRows) {
      CopyAsync16(stage + pair / 8 * kRowStride + pair % 8 * 2,
                  operand.data + pair / 8 * operand.stride + depth + pair % 8 * 2);
    } else {
      CopyAsync16(stage + pair / 32 * kDepthStride + pair % 32 * 2,
                  operand.data + (depth + pair / 32) * operand.stride + pair % 32 * 2);
    }
  }
}

// The lane's element of the fragment that starts at `row` and `depth` of a stage.
template <OperandOrder kOrder>
__device__ inline double Fragment(const double* stage, int row, int depth) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  return kOrder == OperandOrder::kRows ? stage[(row + lane / 4) * kRowStride + depth + lane % 4]
                                       : stage[(depth + lane % 4) * kDepthStride + row + lane / 4];
}

// A warp's operands of one stage.
struct FragmentsF64 {
  double rows[8];
  double columns[4][4];
};

template <OperandOrder kOrderA, OperandOrder kOrderB>
__device__ inline void LoadFragments(const double* a, const double* b, FragmentsF64& fragments) {
  static_assert(kDepth == 16);
  const int warp = static_cast<int>(threadIdx.x / 32);
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    fragments.rows[i] = Fragment<kOrderA>(a, warp / 2 * 16 + i % 2 * 8, i / 2 * 4);
  }
#pragma unroll
  for (int j = 0; j < 4; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      fragments.columns[j][i] = Fragment<kOrderB>(b, warp % 2 * 32 + 8 * j, 4 * i);
    }
  }
}

__device__ inline void MultiplyFragments(const FragmentsF64& fragments, TileResultsF64& results) {
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    MultiplyAddF64(results.acc[j], fragments.rows, fragments.columns[j]);
  }
}

}  // namespace matmul_f64_internal

// Shared memory of MultiplyTileF64: a stage's operands are read while one is multiplied and another
// arrives.
struct TileStageF64 {
  alignas(16) double a[2][matmul_f64_internal::kStageElements];
  alignas(16) double b[2][matmul_f64_internal::kStageElements];
};

// results += A B over `depth`, a multiple of 16 (0 too). All threads of the block call it; the
// stage is free for other use when it returns. Rows in memory begin at multiples of 16 bytes.
template <OperandOrder kOrderA, OperandOrder kOrderB>
__device__ inline void MultiplyTileF64(const OperandF64& a,
                                       const OperandF64& b,
                                       int64_t depth,
                                       TileStageF64& stage,
                                       TileResultsF64& results) {
  using namespace matmul_f64_internal;  // NOLINT(google-build-using-namespace)
  const auto copy = [&](int64_t begin, int buffer) {
    if (begin < depth) {
      CopyStage<kOrderA>(a, begin, stage.a[buffer]);
      CopyStage<kOrderB>(b, begin, stage.b[buffer]);
    }
    CommitCopies();
  };
  if (depth == 0) return;
  copy(0, 0);
  copy(kDepth, 1);
  WaitForCopies<1>();
  __syncthreads();
  FragmentsF64 fragments;
  LoadFragments<kOrderA, kOrderB>(stage.a[0], stage.b[0], fragments);
  int buffer = 0;
  for (int64_t begin = 0; begin < depth; begin += kDepth, buffer ^= 1) {
    WaitForCopies<0>();
    __syncthreads();  // everyone has read this stage
    copy(begin + 2 * kDepth, buffer);
    FragmentsF64 next = {};
    if (begin + kDepth < depth) {
      LoadFragments<kOrderA, kOrderB>(stage.a[buffer ^ 1], stage.b[buffer ^ 1], next);
    }
    MultiplyFragments(fragments, results);
    fragments = next;
  }
  __syncthreads();
}

}  // namespace baton::kernels::cuda
