// How far results are from what they should be.
#pragma once

#include <span>

namespace baton::kernels::cuda {

// The largest difference of two values of the same place, relative to the largest of `want`; NaN
// when there is a NaN. Both are of one size.
double RelativeDifference(std::span<const float> got, std::span<const float> want);

}  // namespace baton::kernels::cuda
