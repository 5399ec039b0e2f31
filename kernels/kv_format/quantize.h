// Asymmetric quantization of a vector to 8, 4 or 2 bits with an fp16 scale and zero:
//   x ~ scale * code + zero, code in [0, 2^bits - 1].
//
// Scale and zero are rounded to fp16 before the codes are computed, the zero down and the scale up,
// so that the rounding of either never adds to the error: |x - x'| <= 0.5 scale (plus fp32 rounding
// of x itself). Codes use a true division and round half to even, which every back end can repeat
// bit by bit.
//
// Demotion to fewer bits works on the codes alone and gives the codes that the original values
// would have got with the wider scale: 255 = 17 * 15 and 15 = 5 * 3, so 17 (5) neighbouring codes
// share one narrow code, whose value is the middle one. The wider scale, 17 (5) times the old one,
// is rounded to the nearest fp16 (relative 2^-11), so a demoted value is within (0.5 + 2^-11 *
// (2^bits - 1)) <= 0.508 wider scales of the original.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/core/half.h"

namespace baton::kernels {

// fp16 bits of a quantized vector's scale and zero, as they lie in memory.
struct QuantRange {
  uint16_t scale = 0;
  uint16_t zero = 0;

  constexpr bool operator==(const QuantRange&) const = default;
};

// The largest code of `bits` bits.
constexpr int32_t QuantLevels(int32_t bits) { return (1 << bits) - 1; }

// Scale and zero for values in [min, max] (finite; what lies past +-65504 saturates). A range of
// one value gets scale 0: all codes are 0 and stand for the zero.
constexpr QuantRange FitQuantRange(float min, float max, int32_t bits) {
  constexpr float kLargest = 65504.0f;
  const float low = min < -kLargest ? -kLargest : min > kLargest ? kLargest : min;
  const float high = max < -kLargest ? -kLargest : max > kLargest ? kLargest : max;
  QuantRange range;
  range.zero = F32ToF16Down(low + 0.0f);  // + 0 turns -0 into +0: one pattern for each range
  const float spread = high - F16ToF32(range.zero);
  range.scale = F32ToF16Up(spread / static_cast<float>(QuantLevels(bits)) + 0.0f);
  return range;
}

// What codes are divided by: the scale, or 1 where it is 0.
constexpr float QuantDivisor(QuantRange range) {
  const float scale = F16ToF32(range.scale);
  return scale > 0.0f ? scale : 1.0f;
}

// The code of one value; zero and divisor are those of its range.
inline uint8_t QuantCode(float value, float zero, float divisor, int32_t bits) {
  const auto levels = static_cast<float>(QuantLevels(bits));
  float code = std::nearbyint((value - zero) / divisor);
  code = code < levels ? code : levels;
  code = code > 0.0f ? code : 0.0f;
  return static_cast<uint8_t>(code);
}

// Quantizes x[count] to one byte per code.
inline QuantRange QuantizeVector(const float* x, int64_t count, int32_t bits, uint8_t* codes) {
  float min = x[0];
  float max = x[0];
  for (int64_t i = 1; i < count; ++i) {
    min = x[i] < min ? x[i] : min;
    max = x[i] > max ? x[i] : max;
  }
  const QuantRange range = FitQuantRange(min, max, bits);
  const float zero = F16ToF32(range.zero);
  const float divisor = QuantDivisor(range);
  for (int64_t i = 0; i < count; ++i) {
    codes[i] = QuantCode(x[i], zero, divisor, bits);
  }
  return range;
}

// The value of a code.
constexpr float DequantCode(uint8_t code, QuantRange range) {
  return F16ToF32(range.scale) * static_cast<float>(code) + F16ToF32(range.zero);
}

// Codes of `from` bits per code of `to` bits: 17 from 8 to 4, 5 from 4 to 2, 85 from 8 to 2 in one
// step, 1 for equal widths.
constexpr int32_t DemotionRatio(int32_t from, int32_t to) {
  return QuantLevels(from) / QuantLevels(to);
}

// The code of `to` bits for a code of `from` bits; to <= from.
constexpr uint8_t DemoteCode(uint8_t code, int32_t from, int32_t to) {
  const int32_t ratio = DemotionRatio(from, to);
  return static_cast<uint8_t>((code + ratio / 2) / ratio);
}

// The range of demoted codes: the same zero, the scale times the ratio to the nearest fp16.
constexpr QuantRange DemoteRange(QuantRange range, int32_t from, int32_t to) {
  const auto ratio = static_cast<float>(DemotionRatio(from, to));
  return {.scale = F32ToF16(F16ToF32(range.scale) * ratio), .zero = range.zero};
}

}  // namespace baton::kernels
