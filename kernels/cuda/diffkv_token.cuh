// Quantizes tokens and moves their codes in and out of pages of format `diffkv`: the device's twins
// of kernels/kv_format/quantize.h and diffkv_page.h, with the same codes bit by bit. A vector lies
// over head_dim / 8 neighbouring lanes, eight elements each.
#pragma once

#include <cuda_fp16.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/diffkv_pages.cuh"
#include "kernels/kv_format/diffkv.h"
#include "kernels/kv_format/quantize.h"

namespace baton::kernels::cuda {

// Lanes that hold a vector.
template <int kDim>
inline constexpr int32_t kVectorLanes = kDim / 8;

// fn<tier>() for a tier that has a page layout.
template <typename Function>
__device__ inline void WithTier(const DiffKvTier& tier, const Function& fn) {
  if (tier.value_bits == 8) {
    fn.template operator()<DiffKvTier{8, 8}>();
  } else if (tier.value_bits == 2) {
    fn.template operator()<DiffKvTier{4, 2}>();
  } else if (tier.key_bits == 8) {
    fn.template operator()<DiffKvTier{8, 4}>();
  } else {
    fn.template operator()<DiffKvTier{4, 4}>();
  }
}

// FitQuantRange with the device's conversions, which round as the format's do.
__device__ inline QuantRange FitRange(float min, float max, int32_t bits) {
  constexpr float kLargest = 65504.0f;
  const float low = fminf(fmaxf(min, -kLargest), kLargest);
  const float high = fminf(fmaxf(max, -kLargest), kLargest);
  const __half zero = __float2half_rd(low + 0.0f);
  const float spread = high - __half2float(zero);
  const float step = __fdiv_rn(spread, static_cast<float>(QuantLevels(bits)));
  return {.scale = __half_as_ushort(__float2half_ru(step + 0.0f)), .zero = __half_as_ushort(zero)};
}

// The range of a vector; every lane of the warp calls it with its eight elements.
template <int kDim>
__device__ inline QuantRange FitVector(const float (&x)[8], int32_t bits) {
  float min = x[0];
  float max = x[0];
#pragma unroll
  for (int i = 1; i < 8; ++i) {
    min = fminf(min, x[i]);
    max = fmaxf(max, x[i]);
  }
#pragma unroll
  for (int step = 1; step < kVectorLanes<kDim>; step *= 2) {
    min = fminf(min, __shfl_xor_sync(kAllLanes, min, step));
    max = fmaxf(max, __shfl_xor_sync(kAllLanes, max, step));
  }
  return FitRange(min, max, bits);
}

// x / divisor, rounded as a division is, for x of 0 and more and a divisor of fp16's precision
// whose `inverse` is rounded to nearest: the product is off by two units in the last place at most,
// and what is left of x corrects it (Markstein, "Computation of elementary functions on the IBM
// RISC System/6000 processor", 1990). The exact quotient is no closer to a tie than 2^-12 of a
// unit. Not a number where the product overflows.
__device__ inline float Quotient(float x, float divisor, float inverse) {
  const float product = x * inverse;
  return __fmaf_rn(__fmaf_rn(-product, divisor, x), inverse, product);
}

// Eight codes as bytes, the first lowest. Above 2^23 fp32 has integers alone, so the addition
// rounds half to even and leaves the code in the low bits; clamped before, as integers bound the
// quotient, one that is not a number to the largest.
__device__ inline uint2 QuantizeEight(const float (&x)[8], QuantRange range, int32_t bits) {
  constexpr float kIntegers = 12582912.0f;  // 1.5 x 2^23
  const float zero = __half2float(__ushort_as_half(range.zero));
  const float scale = __half2float(__ushort_as_half(range.scale));
  const float divisor = scale > 0.0f ? scale : 1.0f;
  const float inverse = __frcp_rn(divisor);
  const auto levels = static_cast<float>(QuantLevels(bits));
  uint32_t codes[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const float above = x[i] - zero;
    const float quotient = Quotient(above < 0.0f ? 0.0f : above, divisor, inverse);
    codes[i] = __float_as_uint(fminf(quotient, levels) + kIntegers);
  }
  uint32_t words[2];
#pragma unroll
  for (int w = 0; w < 2; ++w) {
    const uint32_t even = __byte_perm(codes[4 * w], codes[4 * w + 1], 0x0040);
    const uint32_t odd = __byte_perm(codes[4 * w + 2], codes[4 * w + 3], 0x0040);
    words[w] = __byte_perm(even, odd, 0x5410);
  }
  return {words[0], words[1]};
}

// Eight 4-bit codes, one to a byte, as nibbles, the first lowest; and the inverse.
__device__ inline uint32_t PackNibbles(uint2 bytes) {
  return __byte_perm(bytes.x | (bytes.x >> 4), bytes.y | (bytes.y >> 4), 0x6420);
}
__device__ inline uint2 UnpackNibbles(uint32_t nibbles) {
  const uint32_t even = nibbles & 0x0f0f0f0fu;
  const uint32_t odd = (nibbles >> 4) & 0x0f0f0f0fu;
  return {__byte_perm(even, odd, 0x5140), __byte_perm(even, odd, 0x7362)};
}

// The codes of eight neighbouring dims of a slot's key, from dim `dim` on, a multiple of 8.
template <int kDim, DiffKvTier kTier>
__device__ inline void StoreKeyCodes(std::byte* page, int32_t slot, int32_t dim, uint2 bytes) {
  constexpr DiffKvPageLayout kLayout = {kDim, kTier};
  std::byte* at = page + kLayout.key_codes() + kLayout.key_bit(slot, dim) / 8;
  if constexpr (kTier.key_bits == 8) {
    *reinterpret_cast<uint2*>(at) = bytes;
  } else {
    *reinterpret_cast<uint32_t*>(at) = PackNibbles(bytes);
  }
}
template <int kDim, DiffKvTier kTier>
__device__ inline uint2 LoadKeyCodes(const std::byte* page, int32_t slot, int32_t dim) {
  constexpr DiffKvPageLayout kLayout = {kDim, kTier};
  const std::byte* at = page + kLayout.key_codes() + kLayout.key_bit(slot, dim) / 8;
  if constexpr (kTier.key_bits == 8) {
    return *reinterpret_cast<const uint2*>(at);
  } else {
    return UnpackNibbles(*reinterpret_cast<const uint32_t*>(at));
  }
}

// One token's codes, a byte each, in shared memory.
struct alignas(16) DiffKvCodes {
  uint8_t key[128];
  uint8_t value[128];
};

// The half words of the value segment that hold codes of one slot, shared out to the lanes of a
// warp. Each has the codes of kBlocks dims, 8 apart, kStep bits apart; its other bits are another
// slot's.
template <int kDim, DiffKvTier kTier>
struct DiffKvValueHalves {
  static constexpr int32_t kPairs =  // of a block of 8 dims
      DiffKvPageLayout{kDim, kTier}.value_tile_tokens() / 8;
  static constexpr int32_t kBlocks = 16 / kTier.value_bits / kPairs;
  static constexpr uint32_t kStep = kTier.value_bits * kPairs;
  static constexpr uint32_t kMask = (1u << kTier.value_bits) - 1u;
  static constexpr int32_t kOwn = (kDim / kBlocks + 31) / 32;  // of a lane, at most

  std::byte* page;
  int32_t slot;

  // Whether the lane has an `i`-th one.
  __device__ static bool Has(int i) {
    return kDim / kBlocks % 32 == 0 || Index(i) < kDim / kBlocks;
  }
  __device__ static int32_t FirstDim(int i) { return Index(i) / 8 * (8 * kBlocks) + Index(i) % 8; }
  __device__ uint16_t* At(int i) const {
    constexpr DiffKvPageLayout kLayout = {kDim, kTier};
    return reinterpret_cast<uint16_t*>(page + kLayout.value_codes()) +
           kLayout.value_bit(slot, FirstDim(i)) / 16;
  }
  // Puts codes into the `i`-th one, whose bits of this slot are zero, without reading it.
  __device__ void Join(int i, uint32_t bits) const {
    const auto address = reinterpret_cast<uintptr_t>(At(i));
    atomicOr(reinterpret_cast<uint32_t*>(address & ~uintptr_t{3}), bits << (address & 2) * 8);
  }
  // The bit at which the code of the first dim starts.
  __device__ uint32_t Shift() const {
    constexpr DiffKvPageLayout kLayout = {kDim, kTier};
    return static_cast<uint32_t>(kLayout.value_bit(slot, 0)) % 16;
  }
  // All of the lane's at once, so that none waits for another's codes.
  __device__ void Load(uint32_t (&bits)[kOwn]) const {
#pragma unroll
    for (int i = 0; i < kOwn; ++i) bits[i] = Has(i) ? *At(i) : 0u;
  }

 private:
  __device__ static int32_t Index(int i) { return 32 * i + static_cast<int32_t>(threadIdx.x % 32); }
};

// Puts a token's codes into a slot, by one warp; nobody else writes to the page. An `empty` slot
// has zeros for codes, and is not read.
template <int kDim, DiffKvTier kTier>
__device__ inline void PackToken(std::byte* page,
                                 int32_t slot,
                                 bool empty,
                                 const DiffKvCodes& codes) {
  using Halves = DiffKvValueHalves<kDim, kTier>;
  const Halves halves = {.page = page, .slot = slot};
  uint32_t others[Halves::kOwn] = {};
  if (!empty) halves.Load(others);
  const int32_t dim = static_cast<int32_t>(threadIdx.x % 32) * 8;
  if (dim < kDim) {
    StoreKeyCodes<kDim, kTier>(page, slot, dim, *reinterpret_cast<const uint2*>(codes.key + dim));
  }
#pragma unroll
  for (int i = 0; i < Halves::kOwn; ++i) {
    if (!Halves::Has(i)) continue;
    const uint8_t* values = codes.value + Halves::FirstDim(i);
    uint32_t own = 0;
    uint32_t bits = others[i];
#pragma unroll
    for (int block = 0; block < Halves::kBlocks; ++block) {
      const uint32_t at = halves.Shift() + block * Halves::kStep;
      own |= uint32_t{values[8 * block]} << at;
      bits &= ~(Halves::kMask << at);
    }
    if (empty) {
      halves.Join(i, own);
    } else {
      *halves.At(i) = static_cast<uint16_t>(bits | own);
    }
  }
}

// The inverse.
template <int kDim, DiffKvTier kTier>
__device__ inline void UnpackToken(std::byte* page, int32_t slot, DiffKvCodes& codes) {
  using Halves = DiffKvValueHalves<kDim, kTier>;
  const Halves halves = {.page = page, .slot = slot};
  uint32_t bits[Halves::kOwn];
  halves.Load(bits);
  const int32_t dim = static_cast<int32_t>(threadIdx.x % 32) * 8;
  if (dim < kDim) {
    *reinterpret_cast<uint2*>(codes.key + dim) = LoadKeyCodes<kDim, kTier>(page, slot, dim);
  }
#pragma unroll
  for (int i = 0; i < Halves::kOwn; ++i) {
    if (!Halves::Has(i)) continue;
    uint8_t* values = codes.value + Halves::FirstDim(i);
#pragma unroll
    for (int block = 0; block < Halves::kBlocks; ++block) {
      values[8 * block] = static_cast<uint8_t>(
          (bits[i] >> (halves.Shift() + block * Halves::kStep)) & Halves::kMask);
    }
  }
}

// What a page has of a slot besides codes.
struct DiffKvSlotRefs {
  QuantRange* key_range;
  QuantRange* value_range;
  float* score;
  int32_t* position;
};
__device__ inline DiffKvSlotRefs SlotRefs(const DiffKvPageLayout& layout,
                                          std::byte* page,
                                          int32_t slot) {
  return {reinterpret_cast<QuantRange*>(page + layout.key_scales()) + slot,
          reinterpret_cast<QuantRange*>(page + layout.value_scales()) + slot,
          reinterpret_cast<float*>(page + layout.scores()) + slot,
          reinterpret_cast<int32_t*>(page + layout.positions()) + slot};
}

}  // namespace baton::kernels::cuda
