// Scalar conversions between fp32 and float8_e4m3fn (OCP 8-bit floating point specification, E4M3):
// sign, 4 exponent bits with bias 7, 3 mantissa bits; largest value 448, smallest 2^-9, no
// infinity, NaN is 0x7f or 0xff.
#pragma once

#include <bit>
#include <cstdint>

namespace baton::kernels {

inline constexpr float kF8E4M3Max = 448.0f;

constexpr float F8E4M3ToF32(uint8_t code) {
  const uint32_t sign = static_cast<uint32_t>(code & 0x80u) << 24;
  const uint32_t magnitude = code & 0x7fu;
  if (magnitude == 0x7fu) {
    return std::bit_cast<float>(sign | 0x7fc00000u);
  }
  if (magnitude < 8) {
    // Subnormal: mantissa x 2^-9 is exact in fp32.
    const float value = static_cast<float>(magnitude) * 0x1p-9f;
    return sign != 0 ? -value : value;
  }
  return std::bit_cast<float>(sign | ((magnitude << 20) + (120u << 23)));
}

// Rounds to nearest, ties to even. What rounds past 448, infinity included, becomes 448; a NaN
// stays a NaN.
constexpr uint8_t F32ToF8E4M3(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 24) & 0x80u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) {
    return static_cast<uint8_t>(sign | 0x7fu);
  }
  if (magnitude >= std::bit_cast<uint32_t>(kF8E4M3Max)) {
    return static_cast<uint8_t>(sign | 0x7eu);
  }
  if (magnitude < std::bit_cast<uint32_t>(0x1p-6f)) {
    // The unit in the last place of 2^14 is 2^-9, so the sum's low bits are the rounded mantissa.
    const float shifted = std::bit_cast<float>(magnitude) + 0x1p14f;
    return static_cast<uint8_t>(sign | (std::bit_cast<uint32_t>(shifted) & 0xfu));
  }
  const uint32_t rounded = magnitude + 0x7ffffu + ((magnitude >> 20) & 1u);
  return static_cast<uint8_t>(sign | ((rounded >> 20) - (120u << 3)));
}

}  // namespace baton::kernels
