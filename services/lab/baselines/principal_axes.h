// Principal component analysis of small vectors.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace baton::lab {

// The `axes` directions [axes][dim] of largest variance of `vectors` [count][dim], largest first:
// eigenvectors of the centred covariance matrix, by Jacobi rotations in double.
std::vector<float> PrincipalAxes(std::span<const float> vectors, int64_t dim, int64_t axes);

}  // namespace baton::lab
