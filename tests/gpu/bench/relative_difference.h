// How far two runs of a model are apart.
#pragma once

#include <span>

namespace baton::model {

// The largest difference of two logits of the same place, relative to the largest of `want`; NaN
// when there is a NaN. Both are of one size.
double LogitDifference(std::span<const float> got, std::span<const float> want);

}  // namespace baton::model
