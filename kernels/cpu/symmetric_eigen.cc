#include "kernels/cpu/symmetric_eigen.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>

#include "kernels/core/carver.h"
#include "kernels/cpu/isa_kernels.h"

namespace baton::kernels::cpu {
namespace {

// QL steps per eigenvalue; about two are usual.
constexpr int kMaxSteps = 60;

// Reduces a to tridiagonal form: values and off_diagonal get T. Row k of a keeps reflector k,
// I - factors[k] v v^T, whose v fills columns k + 1 and up.
void Tridiagonalise(const IsaKernels& isa, int64_t n, const EigenScratch& s) {
  for (int64_t k = 0; k + 1 < n; ++k) {
    double* v = s.a + k * n + k + 1;
    const int64_t m = n - k - 1;
    s.values[k] = s.a[k * n + k];
    const double rest = isa.dot_f64(v + 1, v + 1, m - 1);
    if (rest == 0.0) {
      s.off_diagonal[k] = v[0];
      s.factors[k] = 0.0;
      continue;
    }
    const double alpha = -std::copysign(std::sqrt(v[0] * v[0] + rest), v[0]);
    s.off_diagonal[k] = alpha;
    v[0] -= alpha;
    const double factor = 2.0 / (v[0] * v[0] + rest);
    s.factors[k] = factor;
    // The trailing block B becomes B - v w^T - w v^T.
    double* w = s.work;
    for (int64_t i = 0; i < m; ++i) {
      w[i] = factor * isa.dot_f64(s.a + (k + 1 + i) * n + k + 1, v, m);
    }
    isa.add_scaled_f64(-0.5 * factor * isa.dot_f64(v, w, m), v, w, m);
    for (int64_t i = 0; i < m; ++i) {
      double* row = s.a + (k + 1 + i) * n + k + 1;
      isa.add_scaled_f64(-v[i], w, row, m);
      isa.add_scaled_f64(-w[i], v, row, m);
    }
  }
  s.values[n - 1] = s.a[n * n - 1];
  s.off_diagonal[n - 1] = 0.0;
}

// The first index from `low` on whose off-diagonal element is negligible.
int64_t EndOfBlock(int64_t n, const EigenScratch& s, int64_t low) {
  int64_t end = low;
  while (end + 1 < n) {
    const double scale = std::fabs(s.values[end]) + std::fabs(s.values[end + 1]);
    if (std::fabs(s.off_diagonal[end]) <= std::numeric_limits<double>::epsilon() * scale) {
      break;
    }
    ++end;
  }
  return end;
}

// One implicit QL step with Wilkinson's shift on the block [low, end].
void QlStep(const IsaKernels& isa, int64_t n, const EigenScratch& s, int64_t low, int64_t end) {
  double* d = s.values;
  double* e = s.off_diagonal;
  const double half = (d[low + 1] - d[low]) / (2.0 * e[low]);
  double g = d[end] - d[low] + e[low] / (half + std::copysign(std::hypot(half, 1.0), half));
  double sine = 1.0;
  double cosine = 1.0;
  double shift = 0.0;
  for (int64_t i = end - 1; i >= low; --i) {
    const double f = sine * e[i];
    const double b = cosine * e[i];
    const double r = std::hypot(f, g);
    e[i + 1] = r;
    if (r == 0.0) {
      d[i + 1] -= shift;
      e[end] = 0.0;
      return;
    }
    sine = f / r;
    cosine = g / r;
    g = d[i + 1] - shift;
    const double t = (d[i] - g) * sine + 2.0 * cosine * b;
    shift = sine * t;
    d[i + 1] = g + shift;
    g = cosine * t - b;
    isa.rotate_f64(s.rotations + i * n, s.rotations + (i + 1) * n, cosine, sine, n);
  }
  d[low] -= shift;
  e[low] = g;
  e[end] = 0.0;
}

}  // namespace

EigenScratch CarveEigen(int64_t n, Carver& carver) {
  EigenScratch scratch;
  scratch.a = carver.Take<double>(n * n);
  scratch.rotations = carver.Take<double>(n * n);
  scratch.values = carver.Take<double>(n);
  scratch.off_diagonal = carver.Take<double>(n);
  scratch.factors = carver.Take<double>(n);
  scratch.work = carver.Take<double>(n);
  scratch.order = carver.Take<int32_t>(n);
  return scratch;
}

void SolveSymmetric(const IsaKernels& isa, int64_t n, const EigenScratch& scratch) {
  Tridiagonalise(isa, n, scratch);
  std::fill(scratch.rotations, scratch.rotations + n * n, 0.0);
  for (int64_t i = 0; i < n; ++i) {
    scratch.rotations[i * n + i] = 1.0;
  }
  for (int64_t low = 0; low < n; ++low) {
    for (int step = 0; step < kMaxSteps; ++step) {
      const int64_t end = EndOfBlock(n, scratch, low);
      if (end == low) {
        break;
      }
      QlStep(isa, n, scratch, low, end);
    }
  }
  std::iota(scratch.order, scratch.order + n, 0);
  std::sort(scratch.order, scratch.order + n, [&](int32_t a, int32_t b) {
    const double first = scratch.values[a];
    const double second = scratch.values[b];
    return first != second ? first > second : a < b;
  });
}

void SymmetricEigenvector(
    const IsaKernels& isa, int64_t n, const EigenScratch& scratch, int64_t index, double* vector) {
  const double* source = scratch.rotations + scratch.order[index] * n;
  std::copy(source, source + n, vector);
  for (int64_t k = n - 2; k >= 0; --k) {
    if (scratch.factors[k] != 0.0) {
      const double* v = scratch.a + k * n + k + 1;
      const int64_t m = n - k - 1;
      const double dot = isa.dot_f64(v, vector + k + 1, m);
      isa.add_scaled_f64(-scratch.factors[k] * dot, v, vector + k + 1, m);
    }
  }
}

}  // namespace baton::kernels::cpu
