// Wire form `hidden`: the normalised hidden state from which a SwiftKV model makes the keys and
// values of all its upper layers (SwiftKV section 3.2: they are projections of one state), so one
// row per token replaces them all.
//
// Bytes of a row (version 1), little-endian:
//   f32, bf16: width elements
//   f8e4m3: width codes, then one fp16 scale per kGroup channels (the last group may be shorter)
// Error bound: exact for f32; one bf16 rounding (relative 2^-8); f8e4m3: the scale is amax / 448 of
// its group, rounded up to fp16, and an element is within 2^-4 of itself or half the smallest step
// (2^-10 scales), whichever is larger.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/core/dtype.h"
#include "kernels/core/float8.h"
#include "kernels/core/half.h"

namespace baton::kernels {

struct HiddenRowLayout {
  static constexpr uint16_t kVersion = 1;
  static constexpr int32_t kGroup = 128;  // channels that share a scale

  int32_t width = 0;
  DType dtype = DType::kBF16;  // f32, bf16 or f8e4m3

  constexpr bool operator==(const HiddenRowLayout&) const = default;

  constexpr int32_t groups() const { return (width + kGroup - 1) / kGroup; }
  constexpr size_t row_bytes() const {
    const size_t codes = static_cast<size_t>(width) * DTypeBytes(dtype);
    return dtype == DType::kF8E4M3 ? codes + 2 * static_cast<size_t>(groups()) : codes;
  }
};

namespace hidden_internal {

inline void EncodeF8(const float* x, const HiddenRowLayout& layout, std::byte* row) {
  std::byte* scales = row + layout.width;
  for (int32_t group = 0; group < layout.groups(); ++group) {
    const int32_t begin = group * HiddenRowLayout::kGroup;
    const int32_t end = std::min(begin + HiddenRowLayout::kGroup, layout.width);
    float amax = 0.0f;
    for (int32_t i = begin; i < end; ++i) {
      amax = std::max(amax, std::fabs(x[i]));
    }
    const uint16_t scale_bits = F32ToF16Up(amax / kF8E4M3Max);
    const float scale = F16ToF32(scale_bits);
    for (int32_t i = begin; i < end; ++i) {
      row[i] = static_cast<std::byte>(F32ToF8E4M3(scale > 0.0f ? x[i] / scale : 0.0f));
    }
    std::memcpy(scales + 2 * group, &scale_bits, sizeof(scale_bits));
  }
}

inline void DecodeF8(const std::byte* row, const HiddenRowLayout& layout, float* x) {
  const std::byte* scales = row + layout.width;
  for (int32_t i = 0; i < layout.width; ++i) {
    uint16_t scale_bits = 0;
    std::memcpy(&scale_bits, scales + 2 * (i / HiddenRowLayout::kGroup), sizeof(scale_bits));
    x[i] = F8E4M3ToF32(static_cast<uint8_t>(row[i])) * F16ToF32(scale_bits);
  }
}

}  // namespace hidden_internal

// Codes one row, [width].
inline void EncodeHiddenRow(const float* x, const HiddenRowLayout& layout, std::byte* row) {
  switch (layout.dtype) {
    case DType::kF32:
      std::memcpy(row, x, layout.row_bytes());
      return;
    case DType::kF8E4M3:
      hidden_internal::EncodeF8(x, layout, row);
      return;
    default:
      for (int32_t i = 0; i < layout.width; ++i) {
        const uint16_t bits = F32ToBF16(x[i]);
        std::memcpy(row + 2 * i, &bits, sizeof(bits));
      }
  }
}

// The inverse, up to the error bound.
inline void DecodeHiddenRow(const std::byte* row, const HiddenRowLayout& layout, float* x) {
  switch (layout.dtype) {
    case DType::kF32:
      std::memcpy(x, row, layout.row_bytes());
      return;
    case DType::kF8E4M3:
      hidden_internal::DecodeF8(row, layout, x);
      return;
    default:
      for (int32_t i = 0; i < layout.width; ++i) {
        uint16_t bits = 0;
        std::memcpy(&bits, row + 2 * i, sizeof(bits));
        x[i] = BF16ToF32(bits);
      }
  }
}

}  // namespace baton::kernels
