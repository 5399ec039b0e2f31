// What the iteration for dominant directions starts from: sums and differences of a matrix's rows.
#include "kernels/cuda/sketch_rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "kernels/cuda/runtime/device_queue.h"
#include "tests/gpu/support/gpu_test.h"
#include "tests/kernels/support/backends.h"

namespace baton::kernels::cuda {
namespace {

using Matrix = std::vector<double>;  // [rows][width]

class SketchRowsGpuTest : public GpuTest {
 protected:
  // Of symmetric matrices that lie one behind the other.
  Matrix Sketch(int64_t rows, int64_t width, int64_t columns, const Matrix& grams) const {
    const size_t size = static_cast<size_t>(width) * static_cast<size_t>(width);
    const int64_t problems = static_cast<int64_t>(grams.size() / size);
    const DeviceArray<double> gram(grams);
    const DeviceArray<double> sketch = DeviceArray<double>::Poisoned(grams.size());
    SketchRows({.problems = {.count = problems, .stride = size * sizeof(double)},
                .rows = rows,
                .width = width,
                .columns = columns},
               gram.data(),
               sketch.data(),
               queue().stream());
    Wait();
    const Matrix all = sketch.Get();
    Matrix found;
    for (int64_t i = 0; i < problems; ++i) {
      const auto begin = all.begin() + static_cast<int64_t>(size) * i;
      found.insert(found.end(), begin, begin + rows * width);
    }
    return found;
  }
};

Matrix Identity(int64_t width, int64_t columns) {
  Matrix matrix(static_cast<size_t>(width * width));
  for (int64_t i = 0; i < columns; ++i) matrix[static_cast<size_t>(i * width + i)] = 1.0;
  return matrix;
}

Matrix RandomSymmetric(int64_t width, int64_t columns, std::mt19937_64& random) {
  std::normal_distribution<double> normal;
  Matrix matrix(static_cast<size_t>(width * width));
  for (int64_t i = 0; i < columns; ++i) {
    for (int64_t j = 0; j <= i; ++j) {
      const double value = normal(random);
      matrix[static_cast<size_t>(i * width + j)] = value;
      matrix[static_cast<size_t>(j * width + i)] = value;
    }
  }
  return matrix;
}

// The least and the largest diagonal element of the Cholesky factor of C^T C, where C is these
// columns of `signs`; a least one of zero says that they depend on each other.
std::pair<double, double> CholeskyDiagonal(const Matrix& signs,
                                           int64_t rows,
                                           int64_t width,
                                           const std::vector<int64_t>& columns) {
  const size_t count = columns.size();
  Matrix factor(count * count);
  double least = INFINITY;
  double largest = 0.0;
  for (size_t i = 0; i < count; ++i) {
    for (size_t j = 0; j <= i; ++j) {
      double sum = 0.0;
      for (int64_t row = 0; row < rows; ++row) {
        sum += signs[static_cast<size_t>(row * width + columns[i])] *
               signs[static_cast<size_t>(row * width + columns[j])];
      }
      for (size_t k = 0; k < j; ++k) sum -= factor[i * count + k] * factor[j * count + k];
      factor[i * count + j] = i == j ? std::sqrt(std::max(sum, 0.0)) : sum / factor[j * count + j];
    }
    least = std::min(least, factor[i * count + i]);
    largest = std::max(largest, factor[i * count + i]);
  }
  return {least, largest};
}

TEST_F(SketchRowsGpuTest, RowsAreASumOfSignsOfTheMatrixsRows) {
  std::mt19937_64 random(TestSeed());
  for (const auto& [rows, width, columns] : std::vector<std::array<int64_t, 3>>{
           {64, 192, 129}, {64, 256, 256}, {192, 448, 445}, {192, 1024, 1024}}) {
    Matrix grams = RandomSymmetric(width, columns, random);
    const Matrix second = RandomSymmetric(width, columns, random);
    grams.insert(grams.end(), second.begin(), second.end());
    const Matrix signs = Sketch(rows, width, columns, Identity(width, columns));
    const Matrix found = Sketch(rows, width, columns, grams);
    ASSERT_EQ(found.size(), static_cast<size_t>(2 * rows * width));
    for (size_t i = 0; i < found.size(); ++i) {
      const auto at = static_cast<int64_t>(i);
      const int64_t problem = at / (rows * width);
      const int64_t row = at / width % rows;
      const double* gram = grams.data() + problem * width * width;
      double expected = 0.0;
      for (int64_t k = 0; k < columns; ++k) {
        expected += signs[static_cast<size_t>(row * width + k)] * gram[k * width + at % width];
      }
      ASSERT_NEAR(found[i], expected, 1e-10)
          << columns << " columns, problem " << problem << " row " << row << " " << SeedMessage();
    }
  }
}

TEST_F(SketchRowsGpuTest, SignsOfDifferentRowsAreOrthogonal) {
  constexpr int64_t kRows = 192;
  constexpr int64_t kWidth = 1024;
  const Matrix signs = Sketch(kRows, kWidth, kWidth, Identity(kWidth, kWidth));
  for (int64_t i = 0; i < kRows; ++i) {
    for (int64_t j = 0; j <= i; ++j) {
      double sum = 0.0;
      for (int64_t k = 0; k < kWidth; ++k) {
        const double a = signs[static_cast<size_t>(i * kWidth + k)];
        ASSERT_EQ(std::abs(a), 1.0);
        sum += a * signs[static_cast<size_t>(j * kWidth + k)];
      }
      ASSERT_EQ(sum, i == j ? static_cast<double>(kWidth) : 0.0) << i << " " << j;
    }
  }
}

// Whichever columns hold all of a matrix's energy, the rows find them: those of one head, of every
// head's same places, any.
TEST_F(SketchRowsGpuTest, AnyColumnsOfTheRankAreIndependent) {
  constexpr int64_t kRows = 192;
  constexpr int64_t kRank = 160;
  std::mt19937_64 random(TestSeed());
  for (const int64_t columns : {1000, 1024, 4096}) {
    const int64_t width = (columns + 63) / 64 * 64;
    const Matrix signs = Sketch(kRows, width, columns, Identity(width, columns));
    std::vector<std::vector<int64_t>> choices(3);
    std::vector<int64_t> all(static_cast<size_t>(columns));
    std::iota(all.begin(), all.end(), int64_t{0});
    std::shuffle(all.begin(), all.end(), random);
    for (int64_t i = 0; i < kRank; ++i) {
      choices[0].push_back(i);
      choices[1].push_back(i * (columns / kRank));
      choices[2].push_back(all[static_cast<size_t>(i)]);
    }
    for (const std::vector<int64_t>& choice : choices) {
      const auto [least, largest] = CholeskyDiagonal(signs, kRows, width, choice);
      EXPECT_GT(least, largest / 20.0) << columns << " columns from " << choice[0] << " and "
                                       << choice[1] << " on " << SeedMessage();
    }
  }
}

// Numbers of Hadamard's matrix of more rows than a block has shared memory for unasked.
TEST_F(SketchRowsGpuTest, WideMatricesTakeMoreSharedMemory) {
  constexpr int64_t kWidth = 4160;
  const Matrix signs = Sketch(64, kWidth, kWidth, Identity(kWidth, kWidth));
  for (const double sign : signs) ASSERT_EQ(std::abs(sign), 1.0);
}

}  // namespace
}  // namespace baton::kernels::cuda
