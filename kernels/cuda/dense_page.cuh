// What kernels that write tokens to dense and fp8 pages have in common: a block has a token at a
// time, the threads of one threadIdx.y one head's keys or values of it.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/core/dtype.h"
#include "kernels/cuda/bf16.cuh"
#include "kernels/cuda/fp8.cuh"
#include "kernels/kv_format/dense.h"
#include "kernels/kv_format/fp8.h"

namespace baton::kernels::cuda {

inline constexpr int32_t kTokenThreads = 256;
inline constexpr int32_t kTokenBlocksPerMultiprocessor = 6;

// The threads of a block whose heads are worked on kWidth elements at a time: whole warps, no more
// than kTokenThreads.
inline dim3 TokenBlock(const DensePageLayout& layout, int32_t width) {
  constexpr int32_t kWarp = 32;
  const int32_t vectors = (layout.head_dim + width - 1) / width;
  const auto lanes =
      std::min<int32_t>(static_cast<int32_t>(std::bit_ceil(static_cast<uint32_t>(vectors))), kWarp);
  const int32_t warp_parts = kWarp / lanes;
  const int32_t warps = (2 * layout.kv_heads + warp_parts - 1) / warp_parts;
  const int32_t block_parts = std::min(warps, kTokenThreads / kWarp) * warp_parts;
  return dim3(static_cast<uint32_t>(lanes), static_cast<uint32_t>(block_parts));
}

// EncodeFp8 by the threads of one threadIdx.y, for whole warps; with n of 0 nothing is written.
template <int kWidth>
__device__ void EncodeHead(const uint16_t* source, int32_t n, uint8_t* codes, std::byte* scale) {
  const auto first = static_cast<int32_t>(threadIdx.x) * kWidth;
  const auto step = static_cast<int32_t>(blockDim.x) * kWidth;
  float x[kWidth];
  uint32_t largest = 0;
  for (int32_t i = first; i < n; i += step) {
    LoadBf16(source + i, x);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      largest = max(largest, __float_as_uint(x[j]) & 0x7fffffffu);
    }
  }
  for (uint32_t offset = blockDim.x / 2; offset > 0; offset /= 2) {
    largest = max(largest, __shfl_xor_sync(0xffffffffu, largest, static_cast<int>(offset)));
  }
  const float divisor = Fp8Scale(largest);
  for (int32_t i = first; i < n; i += step) {
    LoadBf16(source + i, x);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      x[j] = divisor > 0.0f ? x[j] / divisor : 0.0f;
    }
    StoreF8(codes + i, x);
  }
  if (n > 0 && threadIdx.x == 0) {
    *reinterpret_cast<float*>(scale) = divisor;
  }
}

// Sets `count` elements from `target` on to zero by the threads of one threadIdx.y.
template <int kWidth, typename T>
__device__ void ZeroElements(T* target, int32_t count) {
  using Vector = std::conditional_t<sizeof(T) == sizeof(uint16_t), uint4, uint2>;
  static_assert(kWidth == 1 || sizeof(Vector) == kWidth * sizeof(T));
  for (int32_t i = static_cast<int32_t>(threadIdx.x) * kWidth; i < count;
       i += static_cast<int32_t>(blockDim.x) * kWidth) {
    if constexpr (kWidth == 1) {
      target[i] = 0;
    } else {
      *reinterpret_cast<Vector*>(target + i) = Vector{};
    }
  }
}

// Sets slots [first_slot, page_tokens) of a page to zero: the threads of one threadIdx.y take one
// head's keys or values at a time.
template <DType kDType, int kWidth>
__device__ void ZeroSlots(const DensePageLayout& layout, std::byte* page, int32_t first_slot) {
  using Element = std::conditional_t<kDType == DType::kF8E4M3, uint8_t, uint16_t>;
  const int32_t slots = layout.page_tokens - first_slot;
  for (auto part = static_cast<int32_t>(threadIdx.y); slots > 0 && part < 2 * layout.kv_heads;
       part += static_cast<int32_t>(blockDim.y)) {
    const bool is_key = part < layout.kv_heads;
    const int32_t head = is_key ? part : part - layout.kv_heads;
    std::byte* target = page + (is_key ? layout.key_offset(head, first_slot)
                                       : layout.value_offset(head, first_slot));
    ZeroElements<kWidth>(reinterpret_cast<Element*>(target), slots * layout.head_dim);
    if constexpr (kDType == DType::kF8E4M3) {
      std::byte* scales = page + (is_key ? layout.key_scale_offset(head, first_slot)
                                         : layout.value_scale_offset(head, first_slot));
      ZeroElements<1>(reinterpret_cast<uint32_t*>(scales), slots);
    }
  }
}

}  // namespace baton::kernels::cuda
