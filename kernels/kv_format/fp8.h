// Encode of KV format `fp8` (page bytes in dense.h): one head's keys or values of one token.
#pragma once

#include <bit>
#include <cstdint>
#include <limits>

#include "kernels/core/float8.h"

namespace baton::kernels {

// The scale of a head whose largest magnitude has the fp32 bits `largest`: magnitude / 448. 0 when
// that is 0 in fp32, NaN when an element is not finite; all codes are then 0, so that the head
// reads as zeros, or as NaNs.
constexpr float Fp8Scale(uint32_t largest) {
  if (largest >= 0x7f800000u) {
    return std::numeric_limits<float>::quiet_NaN();
  }
  return std::bit_cast<float>(largest) / kF8E4M3Max;
}

// Encodes x[n] into codes[n] and returns their scale.
constexpr float EncodeFp8(const float* x, int64_t n, uint8_t* codes) {
  uint32_t largest = 0;
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t magnitude = std::bit_cast<uint32_t>(x[i]) & 0x7fffffffu;
    largest = magnitude > largest ? magnitude : largest;
  }
  const float scale = Fp8Scale(largest);
  for (int64_t i = 0; i < n; ++i) {
    codes[i] = scale > 0.0f ? F32ToF8E4M3(x[i] / scale) : uint8_t{0};
  }
  return scale;
}

}  // namespace baton::kernels
