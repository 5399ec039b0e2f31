// Problems of one kind that share every launch.
#pragma once

#include <cstddef>
#include <cstdint>

namespace baton::kernels::cuda {

// Their arrays lie at equal distances: those of the first are told, and how far the next one's are.
struct AlikeProblems {
  int64_t count = 1;
  size_t stride = 0;  // bytes, a multiple of 64
};

}  // namespace baton::kernels::cuda
