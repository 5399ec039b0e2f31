#include "kernels/reference/jacobi.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace baton::kernels::reference {
namespace {

constexpr int kMaxSweeps = 40;
// Off-diagonal energy relative to the whole at which the matrix counts as diagonal.
constexpr double kTolerance = 1e-26;

double OffDiagonalEnergy(int64_t n, const double* a) {
  double sum = 0.0;
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j < i; ++j) {
      sum += 2.0 * a[i * n + j] * a[i * n + j];
    }
  }
  return sum;
}

void RotateRows(double* x, double* y, double cosine, double sine, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    const double first = x[i];
    const double second = y[i];
    x[i] = cosine * first - sine * second;
    y[i] = sine * first + cosine * second;
  }
}

// Zeroes a[p][q] by a rotation of rows and columns p and q.
void Annihilate(int64_t n, int64_t p, int64_t q, double* a, double* vectors) {
  const double off = a[p * n + q];
  if (off == 0.0) {
    return;
  }
  const double theta = (a[q * n + q] - a[p * n + p]) / (2.0 * off);
  const double tangent =
      std::copysign(1.0, theta) / (std::fabs(theta) + std::sqrt(theta * theta + 1.0));
  const double cosine = 1.0 / std::sqrt(tangent * tangent + 1.0);
  const double sine = tangent * cosine;
  RotateRows(a + p * n, a + q * n, cosine, sine, n);
  for (int64_t i = 0; i < n; ++i) {
    RotateRows(a + i * n + p, a + i * n + q, cosine, sine, 1);
  }
  RotateRows(vectors + p * n, vectors + q * n, cosine, sine, n);
}

}  // namespace

void JacobiEigen(int64_t n, double* a, double* vectors) {
  double diagonal = 0.0;
  for (int64_t i = 0; i < n; ++i) {
    std::fill(vectors + i * n, vectors + (i + 1) * n, 0.0);
    vectors[i * n + i] = 1.0;
    diagonal += a[i * n + i] * a[i * n + i];
  }
  const double enough = kTolerance * (diagonal + OffDiagonalEnergy(n, a));
  for (int sweep = 0; sweep < kMaxSweeps && OffDiagonalEnergy(n, a) > enough; ++sweep) {
    for (int64_t p = 0; p < n; ++p) {
      for (int64_t q = p + 1; q < n; ++q) {
        Annihilate(n, p, q, a, vectors);
      }
    }
  }
}

}  // namespace baton::kernels::reference
