// Products of fp64 matrices on the matrix units, a tile of 64 x 64 results for each block. All
// sizes are multiples of 64: matrices are padded with zeros.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/ptx_f64.cuh"
#include "kernels/cuda/ptx_tile.cuh"
#include "kernels/cuda/warp.cuh"

namespace baton::kernels::cuda {

inline constexpr int64_t kTileF64 = 64;
// Threads of a block: warps of 16 x 32 results, two for each scheduler of a multiprocessor, so that
// one reads its operands while the other one multiplies.
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

  __device__ static int first_row() { return static_cast<int>(threadIdx.x / 64) * 16; }
  __device__ static int first_column() { return static_cast<int>(threadIdx.x / 32 % 2) * 32; }
};

// fn(row, column, results of column and column + 1) for a thread's results of a tile.
template <typename Function>
__device__ inline void ForEachPairF64(TileResultsF64& results, const Function& fn) {
  const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      fn(TileResultsF64::first_row() + 8 * i + lane / 4,
         TileResultsF64::first_column() + 8 * j + lane % 4 * 2,
         results.acc[j][i]);
    }
  }
}

namespace matmul_f64_internal {

// Steps of depth of a stage: the operands of some are read while others are multiplied.
inline constexpr int kStageDepth = 32;
// Strides that are 4 modulo 16 spread what a warp reads over all banks.
inline constexpr int kRowStride = kStageDepth + 4;
inline constexpr int kDepthStride = static_cast<int>(kTileF64) + 4;
inline constexpr int kStageElements = static_cast<int>(kTileF64) * kRowStride;

// Starts the copy of one stage of an operand, two elements at once.
template <OperandOrder kOrder>
__device__ inline void CopyStage(const OperandF64& operand, int64_t depth, double* stage) {
  constexpr bool kByRow = kOrder == OperandOrder::kRows;
  constexpr int kTile = static_cast<int>(kTileF64);
  constexpr int kLength = kByRow ? kStageDepth : kTile;  // of a row in memory
  constexpr int kStride = kByRow ? kRowStride : kDepthStride;
  constexpr int kTurnRows = kTileF64Threads / (kLength / 2);
  const int row = static_cast<int>(threadIdx.x) / (kLength / 2);
  const int element = static_cast<int>(threadIdx.x) % (kLength / 2) * 2;
  const double* from = operand.data +
                       (kByRow ? row * operand.stride + depth : (depth + row) * operand.stride) +
                       element;
#pragma unroll
  for (int turn = 0; turn < kTile * kStageDepth / 2 / kTileF64Threads; ++turn) {
    CopyAsync16(stage + (row + turn * kTurnRows) * kStride + element, from);
    from += kTurnRows * operand.stride;
  }
}

// The lane's element of the fragment that starts at `row` and `depth` of a stage.
template <OperandOrder kOrder>
__device__ inline double Fragment(const double* stage, int row, int depth) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  return kOrder == OperandOrder::kRows ? stage[(row + lane / 4) * kRowStride + depth + lane % 4]
                                       : stage[(depth + lane % 4) * kDepthStride + row + lane / 4];
}

// Multiplies the operands of one stage.
template <OperandOrder kOrderA, OperandOrder kOrderB>
__device__ inline void MultiplyStage(const double* a, const double* b, TileResultsF64& results) {
#pragma unroll
  for (int depth = 0; depth < kStageDepth; depth += 16) {
    double rows[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      rows[i] = Fragment<kOrderA>(a, TileResultsF64::first_row() + i % 2 * 8, depth + i / 2 * 4);
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      double columns[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        columns[i] = Fragment<kOrderB>(b, TileResultsF64::first_column() + 8 * j, depth + 4 * i);
      }
      MultiplyAddF64(results.acc[j], rows, columns);
    }
  }
}

}  // namespace matmul_f64_internal

// Shared memory of MultiplyTileF64: one stage is multiplied while the others arrive. Two blocks
// share a multiprocessor on Hopper, which has room for three of each; older devices have room for
// one block's two (device_code.h).
template <bool kHopper>
struct TileStagesF64 {
  static constexpr int kCount = kHopper ? 3 : 2;

  alignas(16) double a[kCount][matmul_f64_internal::kStageElements];
  alignas(16) double b[kCount][matmul_f64_internal::kStageElements];
};
constexpr size_t TileStagesBytesF64(bool hopper_code) {
  return hopper_code ? sizeof(TileStagesF64<true>) : sizeof(TileStagesF64<false>);
}

// results += A B over `depth`, a multiple of 32 (0 too). All threads of the block call it; the
// stages are free for other use when it returns. Rows in memory begin at multiples of 16 bytes.
template <OperandOrder kOrderA, OperandOrder kOrderB, bool kHopper>
__device__ inline void MultiplyTileF64(const OperandF64& a,
                                       const OperandF64& b,
                                       int64_t depth,
                                       TileStagesF64<kHopper>& stages,
                                       TileResultsF64& results) {
  using namespace matmul_f64_internal;  // NOLINT(google-build-using-namespace)
  constexpr int kStages = TileStagesF64<kHopper>::kCount;
  const auto copy = [&](int64_t begin, int stage) {
    if (begin < depth) {
      CopyStage<kOrderA>(a, begin, stages.a[stage]);
      CopyStage<kOrderB>(b, begin, stages.b[stage]);
    }
    CommitCopies();
  };
  if (depth == 0) return;
  for (int stage = 0; stage < kStages - 1; ++stage) copy(int64_t{stage} * kStageDepth, stage);
  int stage = 0;
  for (int64_t begin = 0; begin < depth; begin += kStageDepth) {
    WaitForCopies<kStages - 2>();
    __syncthreads();  // everyone is done with the stage before too
    const auto copy_next = [&] {
      copy(begin + (kStages - 1) * kStageDepth, (stage + kStages - 1) % kStages);
    };
    const auto multiply = [&] {
      MultiplyStage<kOrderA, kOrderB>(stages.a[stage], stages.b[stage], results);
    };
    // A copy that is asked for after the products has to have another stage to arrive in.
    if constexpr (kStages > 2) {
      TakeTurns(copy_next, multiply);
    } else {
      copy_next();
      multiply();
    }
    stage = stage + 1 == kStages ? 0 : stage + 1;
  }
  WaitForCopies<0>();
  __syncthreads();
}

}  // namespace baton::kernels::cuda
