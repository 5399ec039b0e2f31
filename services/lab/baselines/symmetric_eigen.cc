#include "services/lab/baselines/symmetric_eigen.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <numeric>
#include <utility>
#include <vector>

namespace baton::lab {
namespace {

constexpr int kMaxSweeps = 30;
// Sweeps end when what stands beside the diagonal is this small against it (squares).
constexpr double kTolerance = 1e-20;

// A symmetric matrix that turns diagonal, and the rotations that do it; row i of `axes` is the
// eigenvector of a[i][i].
struct Eigen {
  Eigen(std::vector<double> matrix, size_t size)
      : dim(size), a(std::move(matrix)), axes(size * size, 0.0) {
    for (size_t i = 0; i < dim; ++i) {
      axes[i * dim + i] = 1.0;
    }
  }
  double& At(size_t i, size_t j) { return a[i * dim + j]; }

  size_t dim;
  std::vector<double> a;
  std::vector<double> axes;
};

// Makes a[p][q] zero: turns rows p and q, and columns p and q, which are the same by symmetry.
void Rotate(Eigen& eigen, size_t p, size_t q) {
  const double off = eigen.At(p, q);
  if (off == 0.0) {
    return;
  }
  const double low = eigen.At(p, p);
  const double high = eigen.At(q, q);
  const double theta = (high - low) / (2.0 * off);
  const double t = std::copysign(1.0, theta) / (std::abs(theta) + std::sqrt(theta * theta + 1.0));
  const double c = 1.0 / std::sqrt(t * t + 1.0);
  const double s = t * c;
  const auto mix_rows = [&](std::vector<double>& matrix) {
    for (size_t i = 0; i < eigen.dim; ++i) {
      double& x = matrix[p * eigen.dim + i];
      double& y = matrix[q * eigen.dim + i];
      const double old = x;
      x = c * old - s * y;
      y = s * old + c * y;
    }
  };
  mix_rows(eigen.a);
  mix_rows(eigen.axes);
  eigen.At(p, p) = low - t * off;
  eigen.At(q, q) = high + t * off;
  eigen.At(p, q) = 0.0;
  eigen.At(q, p) = 0.0;
  for (size_t i = 0; i < eigen.dim; ++i) {
    eigen.At(i, p) = eigen.At(p, i);
    eigen.At(i, q) = eigen.At(q, i);
  }
}

bool IsDiagonal(Eigen& eigen) {
  double diagonal = 0.0;
  double rest = 0.0;
  for (size_t i = 0; i < eigen.dim; ++i) {
    for (size_t j = 0; j < eigen.dim; ++j) {
      (i == j ? diagonal : rest) += eigen.At(i, j) * eigen.At(i, j);
    }
  }
  return rest <= kTolerance * diagonal;
}

}  // namespace

std::vector<double> SymmetricEigenvectors(std::vector<double> matrix, int64_t dim) {
  Eigen eigen(std::move(matrix), static_cast<size_t>(dim));
  for (int sweep = 0; sweep < kMaxSweeps && !IsDiagonal(eigen); ++sweep) {
    for (size_t p = 0; p + 1 < eigen.dim; ++p) {
      for (size_t q = p + 1; q < eigen.dim; ++q) {
        Rotate(eigen, p, q);
      }
    }
  }
  std::vector<size_t> order(eigen.dim);
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::sort(order, std::ranges::less(), [&](size_t axis) {
    return std::pair(-eigen.At(axis, axis), axis);
  });
  std::vector<double> vectors;
  vectors.reserve(eigen.axes.size());
  for (const size_t axis : order) {
    const double* row = &eigen.axes[axis * eigen.dim];
    vectors.insert(vectors.end(), row, row + dim);
  }
  return vectors;
}

}  // namespace baton::lab
