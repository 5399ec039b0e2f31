// The scalar rules of format `shadowkv` that every back end follows to the bit.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "kernels/core/dtype.h"
#include "kernels/core/half.h"
#include "kernels/kv_format/quantize.h"
#include "kernels/kv_format/shadowkv.h"

namespace baton::kernels {

// Largest code of an int8 coefficient.
inline constexpr float kShadowKvCoefficientCode = 127.0f;

// fp16 scale of a column of coefficients whose largest magnitude is given, rounded up.
constexpr uint16_t ShadowKvCoefficientScale(float largest) {
  return F32ToF16Up(std::min(largest / kShadowKvCoefficientCode, 65504.0f));
}

// round_half_even(value / scale) in [-127, 127]; 0 where the scale is 0.
inline int8_t ShadowKvCoefficientCode(float value, float scale) {
  if (scale == 0.0f) {
    return 0;
  }
  const float code = std::nearbyint(value / scale);
  return static_cast<int8_t>(std::clamp(code, -kShadowKvCoefficientCode, kShadowKvCoefficientCode));
}

// The smallest bf16 not below `value` >= 0, so that a stored deviation stays an upper bound.
constexpr uint16_t BF16AtLeast(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  return static_cast<uint16_t>((bits + 0xffffu) >> 16);
}

// Quantizes x[n] (n * bits a multiple of 8) by the rule of kernels/kv_format/quantize.h; element e
// occupies bits [e * bits, (e + 1) * bits) of `packed`, little-endian. pair[0] is the scale,
// pair[1] the zero, both fp16.
inline void ShadowKvQuantizeVector(
    const float* x, int64_t n, int32_t bits, uint8_t* packed, uint16_t* pair) {
  const auto [min, max] = std::minmax_element(x, x + n);
  const QuantRange range = FitQuantRange(*min, *max, bits);
  const float zero = F16ToF32(range.zero);
  const float divisor = QuantDivisor(range);
  const int64_t per_byte = 8 / bits;
  for (int64_t byte = 0; byte < n / per_byte; ++byte) {
    uint32_t word = 0;
    for (int64_t e = 0; e < per_byte; ++e) {
      word |= uint32_t{QuantCode(x[byte * per_byte + e], zero, divisor, bits)} << (e * bits);
    }
    packed[byte] = static_cast<uint8_t>(word);
  }
  pair[0] = range.scale;
  pair[1] = range.zero;
}

// The same for vector `vector` of a section of codes, [vectors][n], with its pair in a section of
// scales and zeros, [vectors][2].
inline void ShadowKvCodeVector(
    const float* x, int64_t n, int32_t bits, int64_t vector, std::byte* codes, std::byte* pairs) {
  ShadowKvQuantizeVector(x,
                         n,
                         bits,
                         reinterpret_cast<uint8_t*>(codes) + vector * n * bits / 8,
                         reinterpret_cast<uint16_t*>(pairs) + 2 * vector);
}

// Code of element `index` of a packed vector.
inline uint8_t ShadowKvLoadCode(const uint8_t* packed, int64_t index, int32_t bits) {
  const int64_t bit = index * bits;
  return static_cast<uint8_t>((packed[bit / 8] >> (bit % 8)) & QuantLevels(bits));
}

// Codes one group of at most 64 tokens' coefficients, [tokens][rank], with a scale per column.
inline void ShadowKvQuantizeCoefficients(
    const float* values, int64_t tokens, int64_t rank, int8_t* codes, uint16_t* scales) {
  for (int64_t column = 0; column < rank; ++column) {
    float largest = 0.0f;
    for (int64_t token = 0; token < tokens; ++token) {
      largest = std::max(largest, std::fabs(values[token * rank + column]));
    }
    scales[column] = ShadowKvCoefficientScale(largest);
  }
  for (int64_t token = 0; token < tokens; ++token) {
    for (int64_t column = 0; column < rank; ++column) {
      const int64_t index = token * rank + column;
      codes[index] = ShadowKvCoefficientCode(values[index], F16ToF32(scales[column]));
    }
  }
}

// One coded section in memory, read only. Tokens and chunks count from the section's first.
class ShadowKvCodedView {
 public:
  // `joint`: the coefficients, if they are shared with other layers. `values`: the block of values
  // apart.
  ShadowKvCodedView(const ShadowKvConfig& config,
                    const ShadowKvCodedLayout& layout,
                    const std::byte* base,
                    const std::byte* joint = nullptr,
                    const std::byte* values = nullptr)
      : config_(config),
        layout_(layout),
        base_(base),
        coefficients_(config.joint ? joint : base + layout.coefficients),
        scales_(coefficients_ + ShadowKvCoefficientLayout(config, layout.tokens).scales),
        values_((config.values_apart ? values : base) + layout.values) {}

  const ShadowKvCodedLayout& layout() const { return layout_; }
  // Row of `token`, [rank] of the configuration's dtype.
  const std::byte* Coefficients(int64_t token) const {
    return coefficients_ + static_cast<size_t>(token * config_.rank) * DTypeBytes(config_.dtype);
  }
  // Row of `token` in int8, and its scales.
  const int8_t* CoefficientCodes(int64_t token) const {
    return reinterpret_cast<const int8_t*>(coefficients_) + token * config_.rank;
  }
  const uint16_t* CoefficientScales(int64_t token) const {
    return reinterpret_cast<const uint16_t*>(scales_) + token / kShadowKvBlockTokens * config_.rank;
  }
  // [chunks][head_dim], or codes.
  const std::byte* Landmarks(int64_t head) const {
    return base_ + layout_.landmarks +
           static_cast<size_t>(head * layout_.chunks) * config_.landmark_bytes();
  }
  // Scale and zero of each chunk's landmark in codes, [chunks][2].
  const uint16_t* LandmarkScales(int64_t head) const {
    return Pairs(layout_.landmark_scales, head * layout_.chunks);
  }
  const std::byte* Deviations(int64_t head) const {
    return base_ + layout_.deviations +
           static_cast<size_t>(head * layout_.chunks) * config_.vector_bytes();
  }
  const uint8_t* KeyCodes(int64_t head, int64_t token) const {
    return reinterpret_cast<const uint8_t*>(base_ + layout_.key_codes) +
           static_cast<size_t>(head * layout_.tokens + token) * config_.code_bytes(2);
  }
  const uint16_t* KeyScale(int64_t head, int64_t token) const {
    return Pairs(layout_.key_scales, head * layout_.tokens + token);
  }
  // Clusters of the head's tokens from `token` on.
  const uint8_t* ClusterIds(int64_t head, int64_t token) const {
    return reinterpret_cast<const uint8_t*>(base_ + layout_.cluster_ids) + head * layout_.tokens +
           token;
  }
  // The exact value, or its codes.
  const std::byte* Value(int64_t head, int64_t token) const {
    return values_ +
           static_cast<size_t>(head * layout_.tokens + token) * config_.coded_value_bytes();
  }
  const uint16_t* ValueScale(int64_t head, int64_t token) const {
    return Pairs(layout_.value_scales, head * layout_.tokens + token);
  }

 private:
  const uint16_t* Pairs(size_t section, int64_t index) const {
    return reinterpret_cast<const uint16_t*>(base_ + section) + 2 * index;
  }

  const ShadowKvConfig& config_;
  const ShadowKvCodedLayout& layout_;
  const std::byte* base_;
  const std::byte* coefficients_;
  const std::byte* scales_;
  const std::byte* values_;
};

// What the previous selection leaves to the next: for selection index i, plan[i] is the slot that
// holds chunk ids[i] (a hit) or ~slot of the slot to reconstruct it into (a miss).
struct ShadowKvCacheTable {
  int32_t* ids = nullptr;    // [slots], of one head
  int32_t* slots = nullptr;  // [slots]
  int64_t count = 0;         // slots per head
};

// Matches `selected` ascending chunk ids to a head's table and rewrites the table: hits keep their
// slots, misses take freed ones, nothing moves. `plan` and `scratch` hold table.count entries.
// Returns the number of hits.
inline int64_t ShadowKvPlanCache(const ShadowKvCacheTable& table,
                                 const int32_t* chunk_ids,
                                 int64_t selected,
                                 int32_t* plan,
                                 int32_t* scratch) {
  int64_t used = 0;
  while (used < table.count && table.ids[used] != 0) {
    ++used;
  }
  if (used == 0) {
    for (int64_t i = 0; i < table.count; ++i) {
      table.slots[i] = static_cast<int32_t>(i);
    }
  }
  int64_t free_slots = 0;
  int64_t hits = 0;
  int64_t entry = 0;
  for (int64_t i = 0; i < selected; ++i) {
    while (entry < used && table.ids[entry] - 1 < chunk_ids[i]) {
      scratch[free_slots++] = table.slots[entry++];
    }
    const bool hit = entry < used && table.ids[entry] - 1 == chunk_ids[i];
    plan[i] = hit ? table.slots[entry++] : -1;
    hits += hit ? 1 : 0;
  }
  while (entry < table.count) {
    scratch[free_slots++] = table.slots[entry++];
  }
  int64_t next_free = 0;
  for (int64_t i = 0; i < selected; ++i) {
    const int32_t slot = plan[i] >= 0 ? plan[i] : scratch[next_free++];
    plan[i] = plan[i] >= 0 ? slot : ~slot;
    table.ids[i] = chunk_ids[i] + 1;
    table.slots[i] = slot;
  }
  for (int64_t i = selected; i < table.count; ++i) {
    table.ids[i] = 0;
    table.slots[i] = scratch[next_free++];
  }
  return hits;
}

}  // namespace baton::kernels
