// Four fp32 lanes in plain C++, for machines without AVX2.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "kernels/core/half.h"
#include "kernels/kv_format/observed_positions.h"
#include "kernels/kv_format/unobserved_range.h"

namespace baton::kernels::cpu {

// The interface of VecAvx512 (vec_avx512.h) as loops that a compiler turns into whatever vectors
// the baseline has. Fma rounds twice: a fused one would be a library call on such machines.
struct VecPortable {
  static constexpr int kLanes = 4;
  static constexpr int kTileRows = 4;
  static constexpr int kQuantHeads = 4;
  struct F {
    float lane[kLanes];
  };

  static F Zero() { return Set(0.0f); }
  static F Set(float value) { return {{value, value, value, value}}; }
  static F Load(const float* p) { return {{p[0], p[1], p[2], p[3]}}; }
  static F LoadN(const float* p, int64_t n) {
    F v = Zero();
    for (int64_t i = 0; i < n; ++i) {
      v.lane[i] = p[i];
    }
    return v;
  }
  static void Store(float* p, F v) { std::memcpy(p, v.lane, sizeof(v.lane)); }
  static void StoreN(float* p, F v, int64_t n) {
    for (int64_t i = 0; i < n; ++i) {
      p[i] = v.lane[i];
    }
  }

  static F Add(F a, F b) {
    return Map(a, b, [](float x, float y) { return x + y; });
  }
  static F Sub(F a, F b) {
    return Map(a, b, [](float x, float y) { return x - y; });
  }
  static F Mul(F a, F b) {
    return Map(a, b, [](float x, float y) { return x * y; });
  }
  static F Div(F a, F b) {
    return Map(a, b, [](float x, float y) { return x / y; });
  }
  static F Max(F a, F b) {
    return Map(a, b, [](float x, float y) { return x > y ? x : y; });
  }
  static F Fma(F a, F b, F c) { return Add(Mul(a, b), c); }
  static F Round(F a) {
    return Map(a, a, [](float x, float) { return std::nearbyint(x); });
  }
  static F ScaleOrZero(F value, F exponent, F x, F limit) {
    F v;
    for (int i = 0; i < kLanes; ++i) {
      v.lane[i] = 0.0f;
      if (x.lane[i] >= limit.lane[i]) {
        // Lanes that nobody reads may hold any exponent; converting one beyond int32 is undefined.
        const auto whole = static_cast<int32_t>(std::min(exponent.lane[i], 127.0f));
        const auto biased = static_cast<uint32_t>(whole + 127);
        v.lane[i] = value.lane[i] * std::bit_cast<float>(biased << 23);
      }
    }
    return v;
  }
  static F KeepRange(F v, int64_t begin, int64_t end) { return SelectRange(v, Zero(), begin, end); }
  static F SelectRange(F v, F other, int64_t begin, int64_t end) {
    for (int64_t i = 0; i < kLanes; ++i) {
      if (i >= begin && i < end) {
        other.lane[i] = v.lane[i];
      }
    }
    return other;
  }
  static float ReduceAdd(F v) { return (v.lane[0] + v.lane[2]) + (v.lane[1] + v.lane[3]); }
  static float ReduceMax(F v) {
    float max = v.lane[0];
    for (int i = 1; i < kLanes; ++i) {
      max = v.lane[i] > max ? v.lane[i] : max;
    }
    return max;
  }

  static F LoadBF16(const uint16_t* p) { return LoadBF16N(p, kLanes); }
  static F LoadBF16N(const uint16_t* p, int64_t n) {
    F v = Zero();
    for (int64_t i = 0; i < n; ++i) {
      v.lane[i] = std::bit_cast<float>(uint32_t{p[i]} << 16);
    }
    return v;
  }
  static void LoadPairs(const uint16_t* p, F& even, F& odd) {
    F pairs;
    std::memcpy(pairs.lane, p, sizeof(pairs.lane));
    SplitPairs(pairs, even, odd);
  }
  static void SplitPairs(F pairs, F& even, F& odd) {
    for (int i = 0; i < kLanes; ++i) {
      const auto bits = std::bit_cast<uint32_t>(pairs.lane[i]);
      even.lane[i] = std::bit_cast<float>(bits << 16);
      odd.lane[i] = std::bit_cast<float>(bits & 0xffff0000u);
    }
  }
  static void StoreBF16(uint16_t* p, F v) { StoreBF16N(p, v, kLanes); }
  static void StoreBF16N(uint16_t* p, F v, int64_t n) {
    for (int64_t i = 0; i < n; ++i) {
      const auto bits = std::bit_cast<uint32_t>(v.lane[i]);
      const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
      const uint32_t rounded = nan ? bits | 0x400000u : bits + 0x7fffu + ((bits >> 16) & 1u);
      p[i] = static_cast<uint16_t>(rounded >> 16);
    }
  }

  static void StoreBytes(uint8_t* p, F v) {
    for (int i = 0; i < kLanes; ++i) {
      p[i] = static_cast<uint8_t>(v.lane[i]);
    }
  }
  static F AgesFrom(const int32_t* positions,
                    int32_t position,
                    const UnobservedRange* ranges,
                    int32_t count) {
    F v;
    for (int i = 0; i < kLanes; ++i) {
      v.lane[i] = static_cast<float>(ObservedPositions(ranges, count, positions[i], position));
    }
    return v;
  }
  static F SelectBetween(const int32_t* positions, int32_t first, int32_t last, F v, F other) {
    for (int i = 0; i < kLanes; ++i) {
      v.lane[i] = positions[i] >= first && positions[i] <= last ? v.lane[i] : other.lane[i];
    }
    return v;
  }
  static F SelectAtLeast(F x, F limit, F v, F other) {
    for (int i = 0; i < kLanes; ++i) {
      v.lane[i] = x.lane[i] >= limit.lane[i] ? v.lane[i] : other.lane[i];
    }
    return v;
  }

  static void SplitF16(F pairs, F& low, F& high) {
    for (int i = 0; i < kLanes; ++i) {
      const auto bits = std::bit_cast<uint32_t>(pairs.lane[i]);
      low.lane[i] = F16ToF32(static_cast<uint16_t>(bits & 0xffffu));
      high.lane[i] = F16ToF32(static_cast<uint16_t>(bits >> 16));
    }
  }
  template <int kBits>
  static F PrepareCodes(F words) {
    return words;
  }
  template <int kBits, int kShift>
  static F Code(F words) {
    F v;
    for (int i = 0; i < kLanes; ++i) {
      const uint32_t code =
          (std::bit_cast<uint32_t>(words.lane[i]) >> kShift) & ((1u << kBits) - 1u);
      v.lane[i] = static_cast<float>(static_cast<int32_t>(code) - (1 << (kBits - 1)));
    }
    return v;
  }
  static F Pick8(const float* eight, const int32_t* index) {
    return {{eight[index[0]], eight[index[1]], eight[index[2]], eight[index[3]]}};
  }
  static F SelectFrom(F v, F other, const int32_t* positions, int32_t oldest) {
    for (int i = 0; i < kLanes; ++i) {
      v.lane[i] = positions[i] >= oldest ? v.lane[i] : other.lane[i];
    }
    return v;
  }
  static F LoadF8(const uint8_t* p) { return LoadF8N(p, kLanes); }
  static F LoadF8N(const uint8_t* p, int64_t n) {
    F v = Zero();
    for (int64_t i = 0; i < n; ++i) {
      v.lane[i] = WidenF8(p[i]);
    }
    return v;
  }
  template <int kByte>
  static F SplitF8(F quads) {
    return Map(quads, quads, [](float x, float) {
      return WidenF8(std::bit_cast<uint32_t>(x) >> (8 * kByte));
    });
  }

  static void Transpose(F (&r)[kLanes]) {
    F t[kLanes];
    for (int i = 0; i < kLanes; ++i) {
      for (int j = 0; j < kLanes; ++j) {
        t[j].lane[i] = r[i].lane[j];
      }
    }
    for (int i = 0; i < kLanes; ++i) {
      r[i] = t[i];
    }
  }

 private:
  static float WidenF8(uint32_t code) {
    const uint32_t magnitude = (code & 0x7fu) << 20;
    const auto normal = std::bit_cast<float>(magnitude + (120u << 23));
    const float subnormal = 2.0f * normal - 0x1p-6f;
    const float value = subnormal < normal ? subnormal : normal;
    const uint32_t bits = magnitude == 0x7fu << 20 ? 0x7fc00000u : std::bit_cast<uint32_t>(value);
    return std::bit_cast<float>(bits | (code & 0x80u) << 24);
  }
  template <typename Function>
  static F Map(F a, F b, Function function) {
    F v;
    for (int i = 0; i < kLanes; ++i) {
      v.lane[i] = function(a.lane[i], b.lane[i]);
    }
    return v;
  }
};

}  // namespace baton::kernels::cpu
