#include "kernels/cpu/dominant_subspace.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "kernels/core/carver.h"
#include "kernels/core/exec_context.h"
#include "kernels/cpu/isa_kernels.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/symmetric_eigen.h"

namespace baton::kernels::cpu {
namespace {

// Vectors beyond the rank: without them the last directions converge slowly.
constexpr int64_t kOversampling = 32;
// Up to this width a full solve takes no longer than the iteration.
constexpr int64_t kFullWidth = 128;
constexpr int kMinIterations = 3;
constexpr int kMaxIterations = 24;
// The iteration ends when the energy left out falls by less than this share of itself.
constexpr double kEnoughProgress = 5e-4;
// A vector shorter than this share of its former length was a combination of the others.
constexpr double kDependent = 1e-9;
// Columns of a product that one index computes.
constexpr int64_t kColumnsPerIndex = 64;

int64_t BlockSize(int64_t width, int64_t rank) {
  const int64_t block = rank + kOversampling;
  return width <= kFullWidth || 2 * block >= width ? width : block;
}

// SplitMix64 (Steele, Lea and Flood, 2014) as numbers in [-1, 1).
class FixedNumbers {
 public:
  void Fill(double* vector, int64_t n) {
    for (int64_t i = 0; i < n; ++i) {
      state_ += 0x9e3779b97f4a7c15u;
      uint64_t z = state_;
      z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
      z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
      z ^= z >> 31;
      vector[i] = static_cast<double>(z >> 11) * 0x1p-52 - 1.0;
    }
  }

 private:
  uint64_t state_ = 0;
};

// Makes row i orthogonal to the rows before it, twice for fp64 orthogonality (Giraud et al., 2005),
// and returns the share of its length that is left.
double Orthogonalise(const IsaKernels& isa, int64_t i, int64_t width, double* rows) {
  double* row = rows + i * width;
  const double before = std::sqrt(isa.dot_f64(row, row, width));
  for (int pass = 0; pass < 2; ++pass) {
    for (int64_t j = 0; j < i; ++j) {
      const double* other = rows + j * width;
      isa.add_scaled_f64(-isa.dot_f64(row, other, width), other, row, width);
    }
  }
  const double after = std::sqrt(isa.dot_f64(row, row, width));
  if (!(after > kDependent * before)) {
    return 0.0;
  }
  for (int64_t k = 0; k < width; ++k) {
    row[k] /= after;
  }
  return after / before;
}

// Gram-Schmidt over all rows; a dependent row is replaced by fixed numbers.
void OrthonormaliseRows(const IsaKernels& isa,
                        const SubspaceScratch& scratch,
                        FixedNumbers& numbers) {
  for (int64_t i = 0; i < scratch.block; ++i) {
    while (Orthogonalise(isa, i, scratch.width, scratch.vectors) == 0.0) {
      numbers.Fill(scratch.vectors + i * scratch.width, scratch.width);
    }
  }
}

// images = vectors x gram.
void Multiply(const IsaKernels& isa, const ExecContext& context, const SubspaceScratch& scratch) {
  const int64_t indices = (scratch.width + kColumnsPerIndex - 1) / kColumnsPerIndex;
  ParallelFor(context, indices, false, [&](int64_t index, int) {
    const int64_t column = index * kColumnsPerIndex;
    isa.matmul_f64({.a = scratch.vectors,
                    .a_stride = scratch.width,
                    .b = scratch.gram + column,
                    .b_stride = GramStride(scratch.width),
                    .rows = scratch.block,
                    .depth = scratch.width,
                    .columns = std::min(kColumnsPerIndex, scratch.width - column),
                    .out = scratch.images + column,
                    .out_stride = scratch.width});
  });
}

// Solves the projection of gram on the vectors and returns the energy of its `rank` largest
// directions. Needs images = vectors x gram.
double SolveProjection(const IsaKernels& isa,
                       const ExecContext& context,
                       const SubspaceScratch& scratch) {
  const int64_t n = scratch.block;
  ParallelFor(context, n, false, [&](int64_t i, int) {
    for (int64_t j = 0; j <= i; ++j) {
      const double dot = isa.dot_f64(
          scratch.images + i * scratch.width, scratch.vectors + j * scratch.width, scratch.width);
      scratch.eigen.a[i * n + j] = dot;
      scratch.eigen.a[j * n + i] = dot;
    }
  });
  SolveSymmetric(isa, n, scratch.eigen);
  double energy = 0.0;
  for (int64_t i = 0; i < scratch.rank; ++i) {
    energy += scratch.eigen.values[scratch.eigen.order[i]];
  }
  return energy;
}

void SolveInFull(const IsaKernels& isa, const SubspaceScratch& scratch) {
  for (int64_t i = 0; i < scratch.width; ++i) {
    const double* row = scratch.gram + i * GramStride(scratch.width);
    std::copy(row, row + scratch.width, scratch.eigen.a + i * scratch.width);
  }
  SolveSymmetric(isa, scratch.width, scratch.eigen);
  for (int64_t i = 0; i < scratch.rank; ++i) {
    SymmetricEigenvector(isa, scratch.width, scratch.eigen, i, scratch.vectors + i * scratch.width);
  }
}

// Replaces the first `rank` vectors by the projection's largest directions.
void TakeDirections(const IsaKernels& isa, const SubspaceScratch& scratch) {
  const int64_t n = scratch.block;
  for (int64_t i = 0; i < scratch.rank; ++i) {
    double* weights = scratch.eigen.work;
    SymmetricEigenvector(isa, n, scratch.eigen, i, weights);
    double* image = scratch.images + i * scratch.width;
    std::fill(image, image + scratch.width, 0.0);
    for (int64_t j = 0; j < n; ++j) {
      isa.add_scaled_f64(weights[j], scratch.vectors + j * scratch.width, image, scratch.width);
    }
  }
  std::copy(scratch.images, scratch.images + scratch.rank * scratch.width, scratch.vectors);
}

}  // namespace

SubspaceScratch CarveSubspace(int64_t width, int64_t rank, Carver& carver) {
  SubspaceScratch scratch;
  scratch.width = width;
  scratch.rank = rank;
  scratch.block = BlockSize(width, rank);
  scratch.gram = carver.Take<double>(width * GramStride(width));
  scratch.vectors = carver.Take<double>(scratch.block * width);
  scratch.images = carver.Take<double>(scratch.block * width);
  scratch.eigen = CarveEigen(scratch.block, carver);
  return scratch;
}

void DominantSubspace(const IsaKernels& isa,
                      const ExecContext& context,
                      const SubspaceScratch& scratch) {
  if (scratch.block == scratch.width) {
    SolveInFull(isa, scratch);
    return;
  }
  double trace = 0.0;
  for (int64_t i = 0; i < scratch.width; ++i) {
    trace += scratch.gram[i * GramStride(scratch.width) + i];
  }
  FixedNumbers numbers;
  numbers.Fill(scratch.vectors, scratch.block * scratch.width);
  OrthonormaliseRows(isa, scratch, numbers);
  double captured = 0.0;
  for (int iteration = 1;; ++iteration) {
    Multiply(isa, context, scratch);
    if (iteration > kMinIterations) {
      const double before = captured;
      captured = SolveProjection(isa, context, scratch);
      const double left_out = std::max(trace - captured, 1e-12 * trace);
      if (captured - before <= kEnoughProgress * left_out || iteration >= kMaxIterations) {
        break;
      }
    }
    std::copy(scratch.images, scratch.images + scratch.block * scratch.width, scratch.vectors);
    OrthonormaliseRows(isa, scratch, numbers);
  }
  TakeDirections(isa, scratch);
}

}  // namespace baton::kernels::cpu
