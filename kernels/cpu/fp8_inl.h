// Encode of KV format `fp8`: kernels/kv_format/fp8.h without branches, as loops that the compiler
// turns into vectors of the file's instruction set. A template on V, though V is not used, so that
// each instruction set has a function of its own.
#pragma once

#include <bit>
#include <cstdint>
#include <limits>

namespace baton::kernels::cpu {

// The code of a finite value; past 448 it is that of 448.
template <typename V>
[[gnu::always_inline]] inline uint8_t Fp8Code(float value) {
  constexpr uint32_t kMax = 0x43e00000;          // 448
  constexpr uint32_t kLeastNormal = 0x3c800000;  // 2^-6
  const auto bits = std::bit_cast<uint32_t>(value);
  uint32_t magnitude = bits & 0x7fffffffu;
  magnitude = magnitude < kMax ? magnitude : kMax;
  // Below 2^-6: the low bits of the sum with 2^14, whose last place is 2^-9.
  const uint32_t subnormal =
      std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0x1p14f) & 0xfu;
  const uint32_t normal = ((magnitude + 0x7ffffu + ((magnitude >> 20) & 1u)) >> 20) - (120u << 3);
  const uint32_t code = magnitude < kLeastNormal ? subnormal : normal;
  return static_cast<uint8_t>(code | ((bits >> 24) & 0x80u));
}

template <typename V>
float EncodeFp8Row(const float* x, int64_t n, uint8_t* codes) {
  uint32_t largest = 0;
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t magnitude = std::bit_cast<uint32_t>(x[i]) & 0x7fffffffu;
    largest = magnitude > largest ? magnitude : largest;
  }
  const bool finite = largest < 0x7f800000u;
  const float scale =
      finite ? std::bit_cast<float>(largest) / 448.0f : std::numeric_limits<float>::quiet_NaN();
  if (!(scale > 0.0f)) {
    for (int64_t i = 0; i < n; ++i) {
      codes[i] = 0;
    }
    return scale;
  }
  for (int64_t i = 0; i < n; ++i) {
    codes[i] = Fp8Code<V>(x[i] / scale);
  }
  return scale;
}

}  // namespace baton::kernels::cpu
