// Arrays of one of several problems that share every launch.
#pragma once

#include <cstdint>

#include "kernels/cuda/alike_problems.h"

namespace baton::kernels::cuda {

// What `first` of the first problem is of problem `index`.
template <typename T>
__device__ inline T* OfProblem(const AlikeProblems& problems, int64_t index, T* first) {
  return first + index * static_cast<int64_t>(problems.stride / sizeof(T));
}

}  // namespace baton::kernels::cuda
