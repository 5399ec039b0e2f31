// Sums and exponentials in plain loops that compilers turn into vector code.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace baton::lab {

// Sum of a[i] b[i], in eight interleaved partial sums.
float Dot(const float* a, const float* b, int64_t count);

// x[i] = 2^(x[i] - max x), and their sum. `x` must not be empty; relative error below 1e-6; terms
// below 2^-126 are about that.
float Exp2FromMax(std::span<float> x);

// Indices of the `count` largest scores, ascending; of equal scores the lower index wins.
std::vector<int32_t> TopIndices(std::span<const float> scores, int64_t count);

}  // namespace baton::lab
