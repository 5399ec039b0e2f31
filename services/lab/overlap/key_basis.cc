#include "services/lab/overlap/key_basis.h"

#include <cstddef>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "services/lab/baselines/symmetric_eigen.h"

namespace baton::lab {
namespace {

double Product(std::span<const double> a, std::span<const double> b) {
  return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
}

}  // namespace

std::vector<double> GramMatrix(std::span<const float> vectors, int64_t dim) {
  const auto size = static_cast<size_t>(dim);
  std::vector<double> gram(size * size, 0.0);
  for (size_t begin = 0; begin < vectors.size(); begin += size) {
    const std::span<const float> x = vectors.subspan(begin, size);
    for (size_t i = 0; i < size; ++i) {
      const auto factor = static_cast<double>(x[i]);
      for (size_t j = 0; j < size; ++j) {
        gram[i * size + j] += factor * static_cast<double>(x[j]);
      }
    }
  }
  return gram;
}

KeyBasis::KeyBasis(std::vector<double> gram, int64_t dim)
    : dim_(dim), vectors_(SymmetricEigenvectors(std::move(gram), dim)) {}

std::span<const double> KeyBasis::vector(int64_t index) const {
  return std::span(vectors_).subspan(static_cast<size_t>(index * dim_), static_cast<size_t>(dim_));
}

double KeyBasis::Overlap(const KeyBasis& other, int64_t rank) const {
  double sum = 0.0;
  for (int64_t i = 0; i < rank; ++i) {
    for (int64_t j = 0; j < rank; ++j) {
      const double cosine = Product(vector(i), other.vector(j));
      sum += cosine * cosine;
    }
  }
  return sum / static_cast<double>(rank);
}

double KeyBasis::KeptEnergy(std::span<const double> gram, int64_t rank) const {
  const auto size = static_cast<size_t>(dim_);
  double whole = 0.0;
  for (size_t i = 0; i < size; ++i) {
    whole += gram[i * size + i];
  }
  double kept = 0.0;
  for (int64_t index = 0; index < rank; ++index) {
    const std::span<const double> axis = vector(index);
    for (size_t i = 0; i < size; ++i) {
      kept += axis[i] * Product(gram.subspan(i * size, size), axis);
    }
  }
  return whole > 0.0 ? kept / whole : 1.0;
}

}  // namespace baton::lab
