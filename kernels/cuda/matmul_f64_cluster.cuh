// Products of fp64 matrices whose depth the blocks of a cluster share, so that each of them is
// short.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/matmul_f64.cuh"
#include "kernels/cuda/ptx_cluster.cuh"

namespace baton::kernels::cuda {

// Computes A B over `depth`, a multiple of 32, by a cluster of kSplits blocks, 1, 2 or 4, all
// of whose threads call it, and calls fn(row, column, results of column and the next one) for the
// block's share of the tile: 64 / kSplits rows, each by one warp, whose lane l has columns 2 l and
// 2 l + 1. Sums are added in the same order in every block. The stages are free for other use when
// it returns.
template <int kSplits, OperandOrder kOrderA, OperandOrder kOrderB, bool kHopper, typename Function>
__device__ inline void MultiplyTileByCluster(const OperandF64& a,
                                             const OperandF64& b,
                                             int64_t depth,
                                             TileStagesF64<kHopper>& stages,
                                             const Function& fn) {
  constexpr int kTile = static_cast<int>(kTileF64);
  // Between rows of sums: what a warp writes, or reads, at once lies in different banks.
  constexpr int kStride = kTile + 8;
  static_assert(sizeof(stages) >= kTile * kStride * sizeof(double));
  constexpr int kDepth = matmul_f64_internal::kStageDepth;
  const auto rank = static_cast<int>(ClusterRank());
  const auto place = [&](int part) { return depth / kDepth * part / kSplits * kDepth; };
  const auto from = [&](const OperandF64& operand, OperandOrder order) {
    const int64_t step = order == OperandOrder::kRows ? 1 : operand.stride;
    return OperandF64{operand.data + place(rank) * step, operand.stride};
  };
  TileResultsF64 results;
  MultiplyTileF64<kOrderA, kOrderB>(
      from(a, kOrderA), from(b, kOrderB), place(rank + 1) - place(rank), stages, results);
  auto* sums = reinterpret_cast<double*>(&stages);
  ForEachPairF64(results, [&](int r, int c, const double(&pair)[2]) {
    *reinterpret_cast<double2*>(sums + r * kStride + c) = make_double2(pair[0], pair[1]);
  });
  ClusterSync();
  constexpr int kRows = kTile / kSplits;
  constexpr int kWarps = kTileF64Threads / 32;
  const int c = static_cast<int>(threadIdx.x % 32) * 2;
#pragma unroll
  for (int turn = 0; turn < kRows / kWarps; ++turn) {
    const int r = rank * kRows + turn * kWarps + static_cast<int>(threadIdx.x / 32);
    double2 sum = {};
#pragma unroll
    for (int part = 0; part < kSplits; ++part) {
      const auto* at = reinterpret_cast<const double2*>(sums + r * kStride + c);
      const double2 of_part = LoadOfCluster(at, static_cast<uint32_t>(part));
      sum.x += of_part.x;
      sum.y += of_part.y;
    }
    fn(r, c, sum);
  }
  ClusterSync();  // nobody reads what this block has any more
}

}  // namespace baton::kernels::cuda
