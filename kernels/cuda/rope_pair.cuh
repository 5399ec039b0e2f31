// Rotary position embedding of a pair.
#pragma once

namespace baton::kernels::cuda {

__device__ inline void RotatePair(float& first, float& second, float cosine, float sine) {
  const float a = first;
  const float b = second;
  first = a * cosine - b * sine;
  second = b * cosine + a * sine;
}

}  // namespace baton::kernels::cuda
