// The subspace that the keys of a prompt lie in, and how well others fit into it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace baton::lab {

// Sum of k k^T over `vectors` [count][dim], in double: [dim][dim].
std::vector<double> GramMatrix(std::span<const float> vectors, int64_t dim);

// The eigenvectors of a Gram matrix. Its first `rank` are ShadowKV's basis of that rank: no other
// keeps more of the vectors that the matrix was made from.
class KeyBasis {
 public:
  // Of no vectors.
  KeyBasis() = default;
  KeyBasis(std::vector<double> gram, int64_t dim);

  // ||V^T W||_F^2 / rank over the first `rank` vectors of both: the mean squared cosine of the
  // angles between the subspaces. 1 for the same one, about rank / dim for unrelated ones.
  double Overlap(const KeyBasis& other, int64_t rank) const;

  // Share of the energy of the vectors behind `gram` that the first `rank` vectors keep:
  // ||K V||_F^2 / ||K||_F^2; 1 where there is none.
  double KeptEnergy(std::span<const double> gram, int64_t rank) const;

 private:
  std::span<const double> vector(int64_t index) const;

  int64_t dim_ = 0;
  std::vector<double> vectors_;  // [dim][dim], that of the largest eigenvalue first
};

}  // namespace baton::lab
