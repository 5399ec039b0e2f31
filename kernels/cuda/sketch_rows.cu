#include <cuda_runtime.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "kernels/cuda/alike_problems.cuh"
#include "kernels/cuda/allow_shared.h"
#include "kernels/cuda/sketch_rows.h"

namespace baton::kernels::cuda {
namespace {

constexpr int kThreads = 256;

// Mixes the bits of a number of so many bits; different numbers stay different, since every step
// can be undone.
__device__ uint32_t Mixed(uint32_t x, int bits, const uint32_t (&factors)[3]) {
  const uint32_t mask = (1u << bits) - 1;
  const int half = (bits + 1) / 2;
  for (const uint32_t factor : factors) {
    x = (x * factor) & mask;
    x ^= x >> half;
  }
  return x;
}

// Which row of Hadamard's matrix of 2^bits rows is row `row` of S, and which of its columns is
// column `column`. Rows alone would not do: columns that begin alike are alike in many rows.
__device__ uint32_t HadamardRow(uint32_t row, int bits) {
  return Mixed(row, bits, {0x9e3779b1u, 0x85ebca77u, 0xc2b2ae3du});
}
__device__ uint32_t HadamardColumn(uint32_t column, int bits) {
  return Mixed(column, bits, {0x27d4eb2fu, 0x165667b1u, 0x2c1b3c6du});
}

// Columns that a block writes, neighbouring ones, so that it writes whole sectors: fewer where
// their transforms would not fit its shared memory.
int64_t ColumnsOfBlock(int bits) {
  constexpr int64_t kSectorColumns = 4;
  return std::clamp<int64_t>(kMostSketchColumns >> bits, 1, kSectorColumns);
}

// Numbers in shared memory, one in nine left out, so that neighbouring threads may read numbers
// that are eight apart.
__host__ __device__ constexpr int64_t Padded(int64_t index) { return index + index / 8; }

// Numbers of a transform that are `1 << step` apart become sums and differences, in kSteps steps at
// once. `count` is of all transforms of the block, which all threads call.
template <int kSteps>
__device__ void Butterflies(double* values, int count, int step) {
  constexpr int kPoints = 1 << kSteps;
  const int apart = 1 << step;
  for (auto i = static_cast<int>(threadIdx.x); i < count >> kSteps; i += kThreads) {
    const int low = (i >> step << (step + kSteps)) + (i & (apart - 1));
    double x[kPoints];
#pragma unroll
    for (int p = 0; p < kPoints; ++p) x[p] = values[Padded(low + p * apart)];
#pragma unroll
    for (int bit = 1; bit < kPoints; bit *= 2) {
#pragma unroll
      for (int p = 0; p < kPoints; ++p) {
        if ((p & bit) != 0) continue;
        const double a = x[p];
        const double b = x[p + bit];
        x[p] = a + b;
        x[p + bit] = a - b;
      }
    }
#pragma unroll
    for (int p = 0; p < kPoints; ++p) values[Padded(low + p * apart)] = x[p];
  }
  __syncthreads();
}

// Block (x, y) transforms neighbouring rows of the matrix of problem y, which are its columns too,
// and writes these columns of the rows. Takes a double of dynamic shared memory, Padded, for each
// of them and each row of Hadamard's matrix.
__global__ void __launch_bounds__(kThreads) SketchKernel(const __grid_constant__ SketchShape shape,
                                                         const double* first_gram,
                                                         double* first_rows,
                                                         int bits,
                                                         int columns) {
  extern __shared__ __align__(16) double values[];
  const int length = 1 << bits;
  const int64_t column = int64_t{blockIdx.x} * columns;
  const double* gram = OfProblem(shape.problems, blockIdx.y, first_gram) + column * shape.width;
  double* rows = OfProblem(shape.problems, blockIdx.y, first_rows) + column;
  const auto t = static_cast<int>(threadIdx.x);
  const int count = columns << bits;
  for (int i = t; i < count; i += kThreads) {
    const int from = i & (length - 1);
    const double value = from < shape.columns ? gram[(i >> bits) * shape.width + from] : 0.0;
    values[Padded(i - from + HadamardColumn(static_cast<uint32_t>(from), bits))] = value;
  }
  __syncthreads();
  int step = 0;
  for (; step + 3 <= bits; step += 3) Butterflies<3>(values, count, step);
  if (bits - step == 2) Butterflies<2>(values, count, step);
  if (bits - step == 1) Butterflies<1>(values, count, step);
  for (int i = t; i < static_cast<int>(shape.rows) * columns; i += kThreads) {
    const int row = i / columns;
    const int of_block = i % columns;
    rows[row * shape.width + of_block] =
        values[Padded((of_block << bits) + HadamardRow(static_cast<uint32_t>(row), bits))];
  }
}

}  // namespace

void SketchRows(const SketchShape& shape, const double* gram, double* rows, cudaStream_t stream) {
  const auto bits = static_cast<int>(std::bit_width(static_cast<uint64_t>(shape.columns - 1)));
  const int64_t columns = ColumnsOfBlock(bits);
  const size_t shared = static_cast<size_t>(Padded(columns << bits)) * sizeof(double);
  (void)AllowShared(SketchKernel, shared);  // a refusal shows when the op ends
  const dim3 grid(static_cast<uint32_t>(shape.width / columns),
                  static_cast<uint32_t>(shape.problems.count));
  SketchKernel<<<grid, kThreads, shared, stream>>>(
      shape, gram, rows, bits, static_cast<int>(columns));
}

}  // namespace baton::kernels::cuda
