#include "tests/gpu/bench/relative_difference.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <span>

namespace baton::kernels::cuda {

double RelativeDifference(std::span<const float> got, std::span<const float> want) {
  double largest = 0.0;
  double difference = 0.0;
  for (size_t i = 0; i < want.size(); ++i) {
    largest = std::max(largest, std::fabs(double{want[i]}));
    const double here = std::fabs(double{got[i]} - double{want[i]});
    if (std::isnan(here)) return here;
    difference = std::max(difference, here);
  }
  return difference / largest;
}

}  // namespace baton::kernels::cuda
