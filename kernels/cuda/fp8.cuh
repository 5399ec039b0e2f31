// f8e4m3 codes with the hardware's conversions, of which that to codes rounds as F32ToF8E4M3 does.
#pragma once

#include <cuda_fp8.h>

#include <cstdint>

#include "kernels/cuda/bf16.cuh"

namespace baton::kernels::cuda {

__device__ inline uint32_t PackF8(float low, float high) {
  return __nv_cvt_float2_to_fp8x2(make_float2(low, high), __NV_SATFINITE, __NV_E4M3);
}

// Stores the codes of kWidth (kVectorWidth or 1) values: F32ToF8E4M3 of each, except that a NaN has
// no sign. A vector's address is a multiple of its 8 bytes.
template <int kWidth>
__device__ inline void StoreF8(uint8_t* target, const float (&x)[kWidth]) {
  static_assert(kWidth == kVectorWidth || kWidth == 1);
  if constexpr (kWidth == 1) {
    *target = __nv_cvt_float_to_fp8(x[0], __NV_SATFINITE, __NV_E4M3);
  } else {
    *reinterpret_cast<uint2*>(target) = make_uint2(PackF8(x[0], x[1]) | PackF8(x[2], x[3]) << 16,
                                                   PackF8(x[4], x[5]) | PackF8(x[6], x[7]) << 16);
  }
}

// The numbers of two codes, the lower byte's below, as bf16, which has them all.
__device__ inline uint32_t F8PairToBf16(uint32_t codes) {
  const __half2_raw half =
      __nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(codes), __NV_E4M3);
  const float2 wide = __half22float2(half);
  return PackBf16(wide.x, wide.y);
}

// The same of eight codes.
__device__ inline uint4 F8ToBf16(uint2 codes) {
  return make_uint4(F8PairToBf16(codes.x & 0xffffu),
                    F8PairToBf16(codes.x >> 16),
                    F8PairToBf16(codes.y & 0xffffu),
                    F8PairToBf16(codes.y >> 16));
}

}  // namespace baton::kernels::cuda
