// bf16 in memory, fp32 in registers: kernels compute in fp32 and round once, when they store.
#pragma once

#include <cstdint>
#include <initializer_list>

#include "kernels/cuda/ptx_bf16.cuh"

namespace baton::kernels::cuda {

// Elements of one 16-byte access.
inline constexpr int kVectorWidth = 8;

// Whether rows can be worked on in vectors: all addresses are multiples of 16 bytes, all strides
// and lengths multiples of kVectorWidth elements.
inline bool FitsVectors(std::initializer_list<const void*> addresses,
                        std::initializer_list<int64_t> elements) {
  uintptr_t address_bits = 0;
  for (const void* address : addresses) {
    address_bits |= reinterpret_cast<uintptr_t>(address);
  }
  int64_t element_bits = 0;
  for (const int64_t count : elements) {
    element_bits |= count;
  }
  return address_bits % 16 == 0 && element_bits % kVectorWidth == 0;
}

__device__ inline void WidenBf16(uint4 vector, float (&x)[kVectorWidth]) {
  const uint32_t words[4] = {vector.x, vector.y, vector.z, vector.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    x[2 * i] = LowBf16(words[i]);
    x[2 * i + 1] = HighBf16(words[i]);
  }
}

// kWidth (kVectorWidth or 1) neighbouring elements; a vector's address is a multiple of its bytes.
template <int kWidth>
__device__ inline void LoadBf16(const uint16_t* source, float (&x)[kWidth]) {
  static_assert(kWidth == kVectorWidth || kWidth == 1);
  if constexpr (kWidth == 1) {
    x[0] = LowBf16(*source);
  } else {
    WidenBf16(*reinterpret_cast<const uint4*>(source), x);
  }
}

template <int kWidth>
__device__ inline void StoreBf16(uint16_t* target, const float (&x)[kWidth]) {
  static_assert(kWidth == kVectorWidth || kWidth == 1);
  if constexpr (kWidth == 1) {
    *target = static_cast<uint16_t>(PackBf16(x[0], 0.0f));
  } else {
    *reinterpret_cast<uint4*>(target) = make_uint4(
        PackBf16(x[0], x[1]), PackBf16(x[2], x[3]), PackBf16(x[4], x[5]), PackBf16(x[6], x[7]));
  }
}

// The same for fp32 in memory: two 16-byte accesses, or one element.
template <int kWidth>
__device__ inline void LoadF32(const float* source, float (&x)[kWidth]) {
  static_assert(kWidth == kVectorWidth || kWidth == 1);
  if constexpr (kWidth == 1) {
    x[0] = *source;
  } else {
    const float4 low = reinterpret_cast<const float4*>(source)[0];
    const float4 high = reinterpret_cast<const float4*>(source)[1];
    x[0] = low.x, x[1] = low.y, x[2] = low.z, x[3] = low.w;
    x[4] = high.x, x[5] = high.y, x[6] = high.z, x[7] = high.w;
  }
}

template <int kWidth>
__device__ inline void StoreF32(float* target, const float (&x)[kWidth]) {
  static_assert(kWidth == kVectorWidth || kWidth == 1);
  if constexpr (kWidth == 1) {
    *target = x[0];
  } else {
    reinterpret_cast<float4*>(target)[0] = make_float4(x[0], x[1], x[2], x[3]);
    reinterpret_cast<float4*>(target)[1] = make_float4(x[4], x[5], x[6], x[7]);
  }
}

}  // namespace baton::kernels::cuda
