// RoPE of reconstructed keys: two neighbouring dimensions of the first half of a key with those of
// the second.
#pragma once

#include <cstdint>

#include "kernels/cuda/ptx_bf16.cuh"

namespace baton::kernels::cuda::shadowkv {

// The cosines and sines of two neighbouring dimensions.
struct KeyAngles {
  float2 cosine;
  float2 sine;

  // Each of the two pointers is to both dimensions' numbers.
  __device__ KeyAngles(const float* cosines, const float* sines)
      : cosine(*reinterpret_cast<const float2*>(cosines)),
        sine(*reinterpret_cast<const float2*>(sines)) {}

  // Those of both positions together.
  __device__ void Add(const KeyAngles& other) {
    const float2 c = cosine;
    const float2 s = sine;
    cosine = make_float2(__fmaf_rn(c.x, other.cosine.x, -s.x * other.sine.x),
                         __fmaf_rn(c.y, other.cosine.y, -s.y * other.sine.y));
    sine = make_float2(__fmaf_rn(s.x, other.cosine.x, c.x * other.sine.x),
                       __fmaf_rn(s.y, other.cosine.y, c.y * other.sine.y));
  }
};

// Rotates elements x of the first half and y of the second, and rounds them to bf16.
__device__ inline void RotatePair(
    float2 x, float2 y, const KeyAngles& angles, uint32_t& low, uint32_t& high) {
  const float2& c = angles.cosine;
  const float2& s = angles.sine;
  low = PackBf16(__fmaf_rn(x.x, c.x, -y.x * s.x), __fmaf_rn(x.y, c.y, -y.y * s.y));
  high = PackBf16(__fmaf_rn(y.x, c.x, x.x * s.x), __fmaf_rn(y.y, c.y, x.y * s.y));
}

}  // namespace baton::kernels::cuda::shadowkv
