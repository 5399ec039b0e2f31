// Rows made orthonormal by the Cholesky factor of their products.
#include "kernels/cuda/orthonormal_rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "kernels/core/carver.h"
#include "kernels/cuda/runtime/device_queue.h"
#include "tests/gpu/support/gpu_test.h"
#include "tests/kernels/support/backends.h"

namespace baton::kernels::cuda {
namespace {

struct Shape {
  int64_t rows = 0;
  int64_t width = 0;
  int64_t columns = 0;
};

// Rows of one problem, [rows][width].
using Rows = std::vector<double>;

// One step of the factorization and several, whole and not, of devices of either kind (128 and 192
// rows at once).
constexpr Shape kShapes[] = {{64, 192, 129},
                             {128, 320, 300},
                             {192, 448, 448},
                             {192, 1024, 1000},
                             {256, 576, 576},
                             {320, 704, 650},
                             {448, 1024, 1024}};

Rows RandomRows(const Shape& shape, std::mt19937_64& random) {
  std::normal_distribution<double> normal;
  Rows rows(static_cast<size_t>(shape.rows * shape.width));
  for (int64_t i = 0; i < shape.rows; ++i) {
    for (int64_t c = 0; c < shape.columns; ++c) {
      rows[static_cast<size_t>(i * shape.width + c)] = normal(random);
    }
  }
  return rows;
}

double Dot(const Shape& shape, const Rows& a, int64_t i, const Rows& b, int64_t j) {
  double sum = 0.0;
  for (int64_t c = 0; c < shape.width; ++c) {
    sum +=
        a[static_cast<size_t>(i * shape.width + c)] * b[static_cast<size_t>(j * shape.width + c)];
  }
  return sum;
}

class OrthonormalRowsGpuTest : public GpuTest {
 protected:
  using Call = void (*)(const DeviceQueue& queue, const OrthonormalScratch& scratch, double* rows);

  // All problems at once.
  std::vector<Rows> Run(Call call, const Shape& shape, const std::vector<Rows>& problems) const {
    const size_t bytes = problems.front().size() * sizeof(double);
    Carver counter(nullptr);
    CarveOrthonormal(shape.rows, shape.columns, shape.width, counter);
    const size_t rows_at = counter.used();
    counter.Take<double>(static_cast<int64_t>(problems.front().size()));
    const size_t stride = counter.used();
    std::vector<std::byte> memory(stride * problems.size(), std::byte{0xff});
    for (size_t i = 0; i < problems.size(); ++i) {
      std::memcpy(memory.data() + i * stride + rows_at, problems[i].data(), bytes);
    }
    const DeviceArray<std::byte> device(memory);
    Carver carver(device.data());
    OrthonormalScratch scratch = CarveOrthonormal(shape.rows, shape.columns, shape.width, carver);
    scratch.problems = {.count = static_cast<int64_t>(problems.size()), .stride = stride};
    call(queue(), scratch, reinterpret_cast<double*>(device.data() + rows_at));
    Wait();
    memory = device.Get();
    std::vector<Rows> found = problems;
    for (size_t i = 0; i < problems.size(); ++i) {
      std::memcpy(found[i].data(), memory.data() + i * stride + rows_at, bytes);
    }
    return found;
  }

  // Of rows but `except`.
  void ExpectOrthonormal(const Shape& shape,
                         const Rows& rows,
                         double tolerance,
                         const std::vector<int64_t>& except = {}) const {
    const auto is_left_out = [&](int64_t row) {
      return std::find(except.begin(), except.end(), row) != except.end();
    };
    for (int64_t i = 0; i < shape.rows; ++i) {
      for (int64_t j = 0; j <= i; ++j) {
        if (is_left_out(i) || is_left_out(j)) continue;
        ASSERT_NEAR(Dot(shape, rows, i, rows, j), i == j ? 1.0 : 0.0, tolerance)
            << "rows " << i << " and " << j << " of " << shape.rows << " " << SeedMessage();
      }
    }
  }
};

// Each row is made of itself and of those before it, and keeps its direction.
TEST_F(OrthonormalRowsGpuTest, EachRowIsOrthogonalToThoseBeforeIt) {
  std::mt19937_64 random(TestSeed());
  for (const Shape& shape : kShapes) {
    const std::vector<Rows> problems = {
        RandomRows(shape, random), RandomRows(shape, random), RandomRows(shape, random)};
    const std::vector<Rows> found = Run(OrthonormaliseRows, shape, problems);
    for (size_t p = 0; p < problems.size(); ++p) {
      ASSERT_NO_FATAL_FAILURE(ExpectOrthonormal(shape, found[p], 1e-12));
      for (int64_t i = 0; i < shape.rows; ++i) {
        ASSERT_GT(Dot(shape, problems[p], i, found[p], i), 0.0) << i << " " << SeedMessage();
        for (int64_t j = i + 1; j < shape.rows; ++j) {
          ASSERT_NEAR(Dot(shape, problems[p], i, found[p], j), 0.0, 1e-10)
              << "row " << i << " in row " << j << " of " << shape.rows << " " << SeedMessage();
        }
      }
    }
  }
}

// As they come out of a product by a matrix whose eigenvalues lie far apart.
TEST_F(OrthonormalRowsGpuTest, LengthsMayLieManyOrdersApart) {
  std::mt19937_64 random(TestSeed());
  for (const Shape& shape : kShapes) {
    Rows rows = RandomRows(shape, random);
    for (int64_t i = 0; i < shape.rows; ++i) {
      const double length = std::pow(10.0, 8.0 - 16.0 * static_cast<double>(i % 97) / 96.0);
      for (int64_t c = 0; c < shape.width; ++c) {
        rows[static_cast<size_t>(i * shape.width + c)] *= length;
      }
    }
    const std::vector<Rows> found = Run(OrthonormaliseRows, shape, {rows});
    ASSERT_NO_FATAL_FAILURE(ExpectOrthonormal(shape, found.front(), 1e-12));
  }
}

// Rows that differ in a millionth: one call leaves dependencies, two do not.
TEST_F(OrthonormalRowsGpuTest, FinishingMakesRowsThatAreNearlyDependentOrthonormal) {
  std::mt19937_64 random(TestSeed());
  for (const Shape& shape : kShapes) {
    const Rows common = RandomRows(shape, random);
    Rows rows = RandomRows(shape, random);
    for (size_t i = 0; i < rows.size(); ++i) {
      rows[i] = common[i % static_cast<size_t>(shape.width)] + 1e-6 * rows[i];
    }
    const std::vector<Rows> found = Run(FinishOrthonormalRows, shape, {rows, common});
    for (const Rows& each : found) ASSERT_NO_FATAL_FAILURE(ExpectOrthonormal(shape, each, 1e-12));
  }
}

// They get fixed numbers of about length 1; the others are orthonormal without them.
TEST_F(OrthonormalRowsGpuTest, RowsThatDependOnOthersAreReplaced) {
  std::mt19937_64 random(TestSeed());
  for (const Shape& shape : kShapes) {
    Rows rows = RandomRows(shape, random);
    const std::vector<int64_t> dependent = {5, 33, shape.rows / 2 + 7, shape.rows - 1};
    for (const int64_t row : dependent) {
      for (int64_t c = 0; c < shape.width; ++c) {
        const auto of = [&](int64_t other) {
          return rows[static_cast<size_t>(other * shape.width + c)];
        };
        // The last is nothing at all.
        rows[static_cast<size_t>(row * shape.width + c)] =
            row + 1 == shape.rows ? 0.0 : 2.0 * of(1) - of(4);
      }
    }
    const std::vector<Rows> found = Run(OrthonormaliseRows, shape, {rows});
    ASSERT_NO_FATAL_FAILURE(ExpectOrthonormal(shape, found.front(), 1e-12, dependent));
    for (const int64_t row : dependent) {
      const double length = Dot(shape, found.front(), row, found.front(), row);
      EXPECT_TRUE(length > 0.5 && length < 1.5) << row << ": " << length << " " << SeedMessage();
      for (int64_t c = shape.columns; c < shape.width; ++c) {
        ASSERT_EQ(found.front()[static_cast<size_t>(row * shape.width + c)], 0.0);
      }
    }
  }
}

}  // namespace
}  // namespace baton::kernels::cuda
