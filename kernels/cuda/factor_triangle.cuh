// The inverse of a Cholesky factor in shared memory, by one block.
#pragma once

#include <cuda_runtime.h>

#include <cfloat>
#include <cstdint>

#include "kernels/cuda/device_code.h"
#include "kernels/cuda/ptx_f64.cuh"
#include "kernels/cuda/warp.cuh"

namespace baton::kernels::cuda {

// Rows and columns of a tile of the triangle: one warp factors those on the diagonal.
inline constexpr int kTriangleTile = 16;
// Threads of the block.
inline constexpr int kTriangleThreads = 256;
// The largest matrix whose lower half a block has room for.
constexpr int MostTriangleRows(bool hopper_code) { return hopper_code ? 192 : 128; }

// A tile in shared memory. Where an element lies depends on its row, so that lanes that read a
// fragment, of either order, find it in different banks.
struct TriangleTile {
  double at[kTriangleTile * kTriangleTile];

  // Two elements from an even column on lie behind each other.
  __device__ static int Place(int row, int column) {
    return row * kTriangleTile + (column ^ row % 4 * 4);
  }
};

// The lower half of a matrix of up to kMostRows rows, tile by tile, and what its inversion takes.
template <int kMostRows>
struct TriangleOf {
  static constexpr int kMostTiles = kMostRows / kTriangleTile;

  TriangleTile lower[kMostTiles * (kMostTiles + 1) / 2];
  TriangleTile panel[kMostTiles];  // of the factor: the column that is eliminated, transposed
  double before[kMostRows];        // the diagonal as it came
  int32_t dependent[kMostRows];    // set by InvertFactor
  int32_t steep;                   // set to 1 by InvertFactor where a row is
  int32_t tiles;                   // in a column

  __device__ TriangleTile& Tile(int row, int column) { return lower[row * (row + 1) / 2 + column]; }
  __device__ const TriangleTile& Tile(int row, int column) const {
    return lower[row * (row + 1) / 2 + column];
  }
};
using Triangle = TriangleOf<MostTriangleRows(kHopperCode)>;

namespace factor_triangle_internal {

// A square that is this small a share of what it was has nothing but rounding left.
inline constexpr double kDependent = 1e-14;
// Rows whose squares all keep a larger share are orthonormal to 1e-8 after one call.
inline constexpr double kSteepShare = 1e-8;
// Of the block's warps the one that factors, and the one that has its scheduler too and leaves it
// alone meanwhile: each instruction of the first waits for the one before.
inline constexpr int kFactoringWarp = 0;
inline constexpr int kIdleWarp = 4;

// A lane's part of a tile, in the order of MultiplyAddF64.
struct Part {
  double acc[2][2][2] = {};  // of columns 8 j on

  // fn(row, column, element and the one behind it)
  template <typename Function>
  __device__ void ForEachPair(const Function& fn) {
    const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
    for (int j = 0; j < 2; ++j) {
#pragma unroll
      for (int i = 0; i < 2; ++i) fn(8 * i + lane / 4, 8 * j + lane % 4 * 2, acc[j][i]);
    }
  }
  __device__ void Load(const TriangleTile& tile) {
    ForEachPair([&](int r, int c, double(&pair)[2]) {
      const auto from = *reinterpret_cast<const double2*>(&tile.at[tile.Place(r, c)]);
      pair[0] = from.x, pair[1] = from.y;
    });
  }
  __device__ void Store(TriangleTile& tile) {
    ForEachPair([&](int r, int c, const double(&pair)[2]) {
      *reinterpret_cast<double2*>(&tile.at[tile.Place(r, c)]) = make_double2(pair[0], pair[1]);
    });
  }
};

// What a tile is to a product.
enum class Factor { kPlain, kTransposed };

// A tile, times -1 if kNegative, as the first factor of Multiply.
template <Factor kFactor, bool kNegative = false>
struct Rows {
  double at[8];

  __device__ explicit Rows(const TriangleTile& tile) {
    const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int row = lane / 4 + i % 2 * 8;
      const int depth = lane % 4 + i / 2 * 4;
      at[i] = tile.at[kFactor == Factor::kPlain ? tile.Place(row, depth) : tile.Place(depth, row)];
      if (kNegative) at[i] = -at[i];
    }
  }
};

// Adds rows b, or rows b^T, to the parts.
template <Factor kFactor>
__device__ inline void Multiply(const double (&rows)[8], const TriangleTile& b, Part& part) {
  const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    double columns[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int column = 8 * j + lane / 4;
      const int depth = lane % 4 + 4 * i;
      columns[i] =
          b.at[kFactor == Factor::kPlain ? b.Place(depth, column) : b.Place(column, depth)];
    }
    MultiplyAddF64(part.acc[j], rows, columns);
  }
}

// Inverts the factor of tile `index` of the diagonal in place: by eliminating row after row of the
// tile with the identity beside it. Two lanes have a row of the tile, a half each, whose elements
// move one place ahead with each row that is eliminated, so that the identity's take those that are
// left. By one warp.
__device__ inline void FactorTile(Triangle& triangle, int index) {
  constexpr int kHalf = kTriangleTile / 2;
  TriangleTile& tile = triangle.Tile(index, index);
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int row = lane % kTriangleTile;
  const int half = lane / kTriangleTile;
  const double before = triangle.before[index * kTriangleTile + row];
  const double least = fmax(kDependent * before, DBL_MIN);
  double mine[kHalf];
#pragma unroll
  for (int c = 0; c < kHalf; ++c) mine[c] = tile.at[tile.Place(row, half * kHalf + c)];
  double of_row = 0.0;  // its pivot, 0 where it is dependent
#pragma unroll 1
  for (int turn = 0; turn < kTriangleTile; ++turn) {
    const double pivot = __shfl_sync(kAllLanes, mine[0], turn);
    const double first = __shfl_sync(kAllLanes, mine[0], row);
    // Not greater: a NaN is dependent.
    const bool lost = (__ballot_sync(kAllLanes, mine[0] > least) >> turn & 1) == 0;
    const double inverse = Inverse(pivot);
    if (row == turn) of_row = lost ? 0.0 : pivot;
    const double factor = row > turn && !lost ? -(first * inverse) : 0.0;
    double less[kHalf];
#pragma unroll
    for (int c = 0; c < kHalf; ++c) {
      const double eliminated = __shfl_sync(kAllLanes, mine[c], turn + half * kTriangleTile);
      less[c] = fma(factor, eliminated, mine[c]);
    }
    const double of_other = __shfl_sync(kAllLanes, less[0], row + kTriangleTile);
#pragma unroll
    for (int c = 0; c + 1 < kHalf; ++c) mine[c] = less[c + 1];
    mine[kHalf - 1] = half == 0 ? of_other : row == turn ? 1.0 : factor;
  }
  const bool lost = of_row == 0.0;
  const double root = InverseRoot(of_row);
#pragma unroll
  for (int c = 0; c < kHalf; ++c) {
    tile.at[tile.Place(row, half * kHalf + c)] = lost ? 0.0 : mine[c] * root;
  }
  triangle.dependent[index * kTriangleTile + row] = lost ? 1 : 0;
  if (!(of_row > kSteepShare * before)) triangle.steep = 1;
  __syncwarp();
}

// Column `index` of the factor to the panel, transposed, and row `index` of the inverse in its
// place. The tile where they meet is inverted. By all warps.
__device__ inline void EliminateCross(Triangle& triangle, int index) {
  const Rows<Factor::kPlain> diagonal(triangle.Tile(index, index));
  for (int at = static_cast<int>(threadIdx.x / 32); at + 1 < triangle.tiles;
       at += kTriangleThreads / 32) {
    Part part;
    if (at < index) {
      TriangleTile& of_row = triangle.Tile(index, at);
      Multiply<Factor::kPlain>(diagonal.at, of_row, part);
      __syncwarp();  // all lanes have read the tile
      part.Store(of_row);
    } else {
      Multiply<Factor::kTransposed>(diagonal.at, triangle.Tile(at + 1, index), part);
      part.Store(triangle.panel[at + 1]);
    }
  }
}

// Takes off kCount neighbouring tiles of row `row`, behind row `index`, from column `column` on,
// what column `index` of the factor makes of the rows that it eliminates; in column `index` itself
// the inverse takes the place of what is eliminated. Tiles from `end` on are left alone. By one
// warp.
template <int kCount>
__device__ inline void EliminateFrom(Triangle& triangle, int index, int row, int column, int end) {
  const Rows<Factor::kTransposed, true> factor(triangle.panel[row]);
  Part parts[kCount];
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const int at = column + i;
    if (at < end && at != index) parts[i].Load(triangle.Tile(row, at));
  }
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const int at = min(column + i, end - 1);
    const TriangleTile& eliminated = at > index ? triangle.panel[at] : triangle.Tile(index, at);
    Multiply<Factor::kPlain>(factor.at, eliminated, parts[i]);
  }
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    if (column + i < end) parts[i].Store(triangle.Tile(row, column + i));
  }
}

// The rest of the triangle behind EliminateCross, but for the next tile of the diagonal. By all
// warps but kFactoringWarp and kIdleWarp.
__device__ inline void EliminateRest(Triangle& triangle, int index) {
  constexpr int kWarps = kTriangleThreads / 32 - 2;
  const int warp = static_cast<int>(threadIdx.x / 32);
  int at = warp < kIdleWarp ? warp - 1 : warp - 2;
  for (int row = triangle.tiles - 1; row > index; --row) {
    const int end = row == index + 1 ? row : row + 1;
    const int pairs = (end + 1) / 2;
    for (; at < pairs; at += kWarps) EliminateFrom<2>(triangle, index, row, at * 2, end);
    at -= pairs;
  }
}

}  // namespace factor_triangle_internal

// Makes of a symmetric matrix, of which the tiles on and below the diagonal are there, the inverse
// of its Cholesky factor, with zeros above the diagonal of tiles on it; `before`, `tiles` and
// `steep` are set. Rows that depend on those before up to rounding become zeros. While the other
// warps eliminate a column of tiles from the rest, one factors the next tile of the diagonal, which
// takes about as long. All threads of a block of kTriangleThreads call it, which have synchronised.
__device__ inline void InvertFactor(Triangle& triangle) {
  using namespace factor_triangle_internal;  // NOLINT(google-build-using-namespace)
  const int warp = static_cast<int>(threadIdx.x / 32);
  if (warp == kFactoringWarp) FactorTile(triangle, 0);
  __syncthreads();
#pragma unroll 1
  for (int index = 0; index < triangle.tiles; ++index) {
    EliminateCross(triangle, index);
    __syncthreads();
    const int next = index + 1;
    if (next == triangle.tiles) break;
    if (warp == kFactoringWarp) {
      EliminateFrom<1>(triangle, index, next, next, next + 1);
      __syncwarp();
      FactorTile(triangle, next);
    } else if (warp != kIdleWarp) {
      EliminateRest(triangle, index);
    }
    __syncthreads();
  }
}

}  // namespace baton::kernels::cuda
