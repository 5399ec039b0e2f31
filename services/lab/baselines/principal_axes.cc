#include "services/lab/baselines/principal_axes.h"

#include <cstddef>
#include <span>
#include <vector>

#include "services/lab/baselines/symmetric_eigen.h"

namespace baton::lab {
namespace {

// [dim][dim], times the number of vectors.
std::vector<double> Covariance(std::span<const float> vectors, size_t dim) {
  const size_t count = vectors.size() / dim;
  std::vector<double> mean(dim, 0.0);
  for (size_t i = 0; i < vectors.size(); ++i) {
    mean[i % dim] += static_cast<double>(vectors[i]) / static_cast<double>(count);
  }
  std::vector<double> covariance(dim * dim, 0.0);
  std::vector<double> x(dim);
  for (size_t n = 0; n < count; ++n) {
    for (size_t i = 0; i < dim; ++i) {
      x[i] = static_cast<double>(vectors[n * dim + i]) - mean[i];
    }
    for (size_t i = 0; i < dim; ++i) {
      for (size_t j = 0; j < dim; ++j) {
        covariance[i * dim + j] += x[i] * x[j];
      }
    }
  }
  return covariance;
}

}  // namespace

std::vector<float> PrincipalAxes(std::span<const float> vectors, int64_t dim, int64_t axes) {
  const std::vector<double> all =
      SymmetricEigenvectors(Covariance(vectors, static_cast<size_t>(dim)), dim);
  return {all.begin(), all.begin() + axes * dim};
}

}  // namespace baton::lab
