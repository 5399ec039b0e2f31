// Scalar conversions between fp32 and the two 16-bit float types, used by the reference back end
// and by loaders. Values are carried as raw bits (uint16_t).
#pragma once

#include <bit>
#include <cstdint>

namespace baton::kernels {

constexpr float BF16ToF32(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

// Rounds to nearest, ties to even; a NaN stays a (quiet) NaN.
constexpr uint16_t F32ToBF16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) {
    return static_cast<uint16_t>((bits >> 16) | 0x40u);
  }
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

constexpr float F16ToF32(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  const uint32_t exponent = (bits >> 10) & 0x1fu;
  const uint32_t mantissa = bits & 0x3ffu;
  if (exponent == 0x1f) {
    return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
  }
  if (exponent != 0) {
    return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
  }
  // Subnormal: mantissa x 2^-24 is exact in fp32.
  const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
  return sign != 0 ? -magnitude : magnitude;
}

namespace half_internal {

// |value| as fp16 rounded towards zero, and what was cut off in units of half a last place: 0
// nothing, 1 less than a half, 2 a half, 3 more than a half.
struct TruncatedF16 {
  uint32_t magnitude;
  int tail;
};

constexpr int TailOf(uint32_t rest, uint32_t half) {
  return rest == 0 ? 0 : rest < half ? 1 : rest == half ? 2 : 3;
}

// `bits` are those of a finite or infinite fp32 without its sign.
constexpr TruncatedF16 TruncateToF16(uint32_t bits) {
  if (bits == 0x7f800000u) return {0x7c00u, 0};
  if (bits >= 0x47800000u) return {0x7bffu, 3};  // 65536 and more
  if (bits >= 0x38800000u) {                     // 2^-14 and more: normal in fp16
    return {(bits - (112u << 23)) >> 13, TailOf(bits & 0x1fffu, 0x1000u)};
  }
  const uint32_t exponent = bits >> 23;
  if (exponent < 102) return {0, bits == 0 ? 0 : 1};  // below 2^-25
  const uint32_t mantissa = (bits & 0x7fffffu) | 0x800000u;
  const uint32_t shift = 126 - exponent;  // to units of 2^-24
  return {mantissa >> shift, TailOf(mantissa & ((1u << shift) - 1u), 1u << (shift - 1))};
}

enum class Rounding { kNearestEven, kUp, kDown };

constexpr uint16_t F32ToF16(float value, Rounding rounding) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  if ((bits & 0x7fffffffu) > 0x7f800000u) {
    return static_cast<uint16_t>(sign | 0x7e00u);
  }
  const TruncatedF16 half = TruncateToF16(bits & 0x7fffffffu);
  bool away = false;  // from zero
  switch (rounding) {
    case Rounding::kNearestEven:
      away = half.tail == 3 || (half.tail == 2 && (half.magnitude & 1u) != 0);
      break;
    case Rounding::kUp:
      away = half.tail != 0 && sign == 0;
      break;
    case Rounding::kDown:
      away = half.tail != 0 && sign != 0;
      break;
  }
  return static_cast<uint16_t>(sign | (half.magnitude + (away ? 1u : 0u)));
}

}  // namespace half_internal

// fp32 to fp16: to nearest with ties to even, towards +infinity, and towards -infinity, as IEEE 754
// has them (past 65504 a result is an infinity or +-65504). A NaN becomes a quiet NaN.
constexpr uint16_t F32ToF16(float value) {
  return half_internal::F32ToF16(value, half_internal::Rounding::kNearestEven);
}
constexpr uint16_t F32ToF16Up(float value) {
  return half_internal::F32ToF16(value, half_internal::Rounding::kUp);
}
constexpr uint16_t F32ToF16Down(float value) {
  return half_internal::F32ToF16(value, half_internal::Rounding::kDown);
}

}  // namespace baton::kernels
