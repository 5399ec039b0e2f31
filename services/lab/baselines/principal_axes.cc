#include "services/lab/baselines/principal_axes.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <span>
#include <vector>

namespace baton::lab {
namespace {

constexpr int kMaxSweeps = 30;
// Sweeps end when what stands beside the diagonal is this small against it (squares).
constexpr double kTolerance = 1e-20;

// A symmetric matrix that turns diagonal, and the rotations that do it; row i of `axes` is the
// eigenvector of a[i][i].
struct Eigen {
  explicit Eigen(size_t size) : dim(size), a(size * size, 0.0), axes(size * size, 0.0) {
    for (size_t i = 0; i < dim; ++i) {
      axes[i * dim + i] = 1.0;
    }
  }
  double& At(size_t i, size_t j) { return a[i * dim + j]; }

  size_t dim;
  std::vector<double> a;
  std::vector<double> axes;
};

void AddCovariance(std::span<const float> vectors, Eigen& eigen) {
  const size_t dim = eigen.dim;
  const size_t count = vectors.size() / dim;
  std::vector<double> mean(dim, 0.0);
  for (size_t i = 0; i < vectors.size(); ++i) {
    mean[i % dim] += static_cast<double>(vectors[i]) / static_cast<double>(count);
  }
  std::vector<double> x(dim);
  for (size_t n = 0; n < count; ++n) {
    for (size_t i = 0; i < dim; ++i) {
      x[i] = static_cast<double>(vectors[n * dim + i]) - mean[i];
    }
    for (size_t i = 0; i < dim; ++i) {
      for (size_t j = 0; j < dim; ++j) {
        eigen.At(i, j) += x[i] * x[j];
      }
    }
  }
}

// Makes a[p][q] zero.
void Rotate(Eigen& eigen, size_t p, size_t q) {
  if (eigen.At(p, q) == 0.0) {
    return;
  }
  const double theta = (eigen.At(q, q) - eigen.At(p, p)) / (2.0 * eigen.At(p, q));
  const double t = std::copysign(1.0, theta) / (std::abs(theta) + std::sqrt(theta * theta + 1.0));
  const double c = 1.0 / std::sqrt(t * t + 1.0);
  const double s = t * c;
  const auto mix = [&](double& x, double& y) {
    const double old = x;
    x = c * old - s * y;
    y = s * old + c * y;
  };
  for (size_t i = 0; i < eigen.dim; ++i) {
    mix(eigen.At(i, p), eigen.At(i, q));
  }
  for (size_t i = 0; i < eigen.dim; ++i) {
    mix(eigen.At(p, i), eigen.At(q, i));
    mix(eigen.axes[p * eigen.dim + i], eigen.axes[q * eigen.dim + i]);
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

std::vector<float> PrincipalAxes(std::span<const float> vectors, int64_t dim, int64_t axes) {
  Eigen eigen(static_cast<size_t>(dim));
  AddCovariance(vectors, eigen);
  for (int sweep = 0; sweep < kMaxSweeps && !IsDiagonal(eigen); ++sweep) {
    for (size_t p = 0; p + 1 < eigen.dim; ++p) {
      for (size_t q = p + 1; q < eigen.dim; ++q) {
        Rotate(eigen, p, q);
      }
    }
  }
  std::vector<size_t> order(eigen.dim);
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t i, size_t j) {
    return eigen.At(i, i) > eigen.At(j, j);
  });
  std::vector<float> result;
  for (int64_t axis = 0; axis < axes; ++axis) {
    const double* row = &eigen.axes[order[static_cast<size_t>(axis)] * eigen.dim];
    result.insert(result.end(), row, row + dim);
  }
  return result;
}

}  // namespace baton::lab
