// Eight fp32 lanes in one AVX2 register. Only isa_avx2.cc may include this file.
#pragma once

#include <immintrin.h>

#include <algorithm>
#include <cstdint>

#include "kernels/kv_format/unobserved_range.h"

namespace baton::kernels::cpu {

// The interface of VecAvx512 (vec_avx512.h) over AVX2 and FMA.
struct VecAvx2 {
  using F = __m256;
  static constexpr int kLanes = 8;
  // Rows of a matrix tile: 6 x 2 accumulators, 2 columns and a broadcast fill 15 of 16 registers.
  static constexpr int kTileRows = 6;
  static constexpr int kQuantHeads = 4;

  static F Zero() { return _mm256_setzero_ps(); }
  static F Set(float value) { return _mm256_set1_ps(value); }
  static F Load(const float* p) { return _mm256_loadu_ps(p); }
  static F LoadN(const float* p, int64_t n) { return _mm256_maskload_ps(p, Range(0, n)); }
  static void Store(float* p, F v) { _mm256_storeu_ps(p, v); }
  static void StoreN(float* p, F v, int64_t n) { _mm256_maskstore_ps(p, Range(0, n), v); }

  static F Add(F a, F b) { return _mm256_add_ps(a, b); }
  static F Sub(F a, F b) { return _mm256_sub_ps(a, b); }
  static F Mul(F a, F b) { return _mm256_mul_ps(a, b); }
  static F Div(F a, F b) { return _mm256_div_ps(a, b); }
  static F Max(F a, F b) { return _mm256_max_ps(a, b); }
  static F Fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
  static F Round(F a) { return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  // value * 2^exponent where x >= limit, else 0; the exponent is a whole number in [-126, 127].
  static F ScaleOrZero(F value, F exponent, F x, F limit) {
    const __m256i biased = _mm256_add_epi32(_mm256_cvtps_epi32(exponent), _mm256_set1_epi32(127));
    const F power = _mm256_castsi256_ps(_mm256_slli_epi32(biased, 23));
    return _mm256_and_ps(_mm256_cmp_ps(x, limit, _CMP_GE_OQ), _mm256_mul_ps(value, power));
  }
  static F KeepRange(F v, int64_t begin, int64_t end) {
    return _mm256_and_ps(v, _mm256_castsi256_ps(Range(begin, end)));
  }
  static F SelectRange(F v, F other, int64_t begin, int64_t end) {
    return _mm256_blendv_ps(other, v, _mm256_castsi256_ps(Range(begin, end)));
  }
  static float ReduceAdd(F v) {
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
  }
  static float ReduceMax(F v) {
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
  }

  static F LoadBF16(const uint16_t* p) {
    return Widen(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  static F LoadBF16N(const uint16_t* p, int64_t n) {
    alignas(16) uint16_t whole[kLanes] = {};
    for (int64_t i = 0; i < n; ++i) {
      whole[i] = p[i];
    }
    return LoadBF16(whole);
  }
  static void LoadPairs(const uint16_t* p, F& even, F& odd) {
    SplitPairs(_mm256_loadu_ps(reinterpret_cast<const float*>(p)), even, odd);
  }
  static void SplitPairs(F pairs, F& even, F& odd) {
    const __m256i bits = _mm256_castps_si256(pairs);
    even = _mm256_castsi256_ps(_mm256_slli_epi32(bits, 16));
    odd = _mm256_castsi256_ps(_mm256_and_si256(bits, _mm256_set1_epi32(-65536)));
  }
  static void StoreBF16(uint16_t* p, F v) {
    const __m256i words = RoundBF16(v);
    const __m256i packed =
        _mm256_permute4x64_epi64(_mm256_packus_epi32(words, words), _MM_SHUFFLE(3, 1, 2, 0));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_castsi256_si128(packed));
  }
  static void StoreBF16N(uint16_t* p, F v, int64_t n) {
    alignas(16) uint16_t whole[kLanes];
    StoreBF16(whole, v);
    for (int64_t i = 0; i < n; ++i) {
      p[i] = whole[i];
    }
  }

  static void StoreBytes(uint8_t* p, F v) {
    const __m256i whole = _mm256_cvtps_epi32(v);
    const __m128i words =
        _mm_packus_epi32(_mm256_castsi256_si128(whole), _mm256_extracti128_si256(whole, 1));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm_packus_epi16(words, words));
  }
  static F AgesFrom(const int32_t* positions,
                    int32_t position,
                    const UnobservedRange* ranges,
                    int32_t count) {
    const __m256i stored = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(positions));
    __m256i age = _mm256_sub_epi32(_mm256_set1_epi32(position), stored);
    for (int32_t i = 0; i < count; ++i) {
      const UnobservedRange& range = ranges[i];
      const __m256i begin = _mm256_max_epi32(stored, _mm256_set1_epi32(range.begin));
      const __m256i before =
          _mm256_sub_epi32(begin, _mm256_srl_epi32(begin, _mm_cvtsi32_si128(range.observed_shift)));
      const __m256i left_out =
          _mm256_sub_epi32(_mm256_set1_epi32(range.Before(std::min(range.end, position))), before);
      age = _mm256_sub_epi32(age, _mm256_max_epi32(left_out, _mm256_setzero_si256()));
    }
    return _mm256_cvtepi32_ps(age);
  }
  static F SelectBetween(const int32_t* positions, int32_t first, int32_t last, F v, F other) {
    const __m256i stored = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(positions));
    const __m256i outside = _mm256_or_si256(_mm256_cmpgt_epi32(_mm256_set1_epi32(first), stored),
                                            _mm256_cmpgt_epi32(stored, _mm256_set1_epi32(last)));
    return _mm256_blendv_ps(v, other, _mm256_castsi256_ps(outside));
  }
  static F SelectAtLeast(F x, F limit, F v, F other) {
    return _mm256_blendv_ps(other, v, _mm256_cmp_ps(x, limit, _CMP_GE_OQ));
  }

  static void SplitF16(F pairs, F& low, F& high) {
    const __m256i bits = _mm256_castps_si256(pairs);
    low = WidenF16(_mm256_slli_epi32(bits, 16));
    high = WidenF16(bits);
  }
  template <int kBits>
  static F PrepareCodes(F words) {
    constexpr int kFlip = kBits == 8 ? -0x7f7f7f80 : -0x77777778;
    if constexpr (kBits == 2) {
      return words;
    }
    return _mm256_castsi256_ps(
        _mm256_xor_si256(_mm256_castps_si256(words), _mm256_set1_epi32(kFlip)));
  }
  template <int kBits, int kShift>
  static F Code(F words) {
    const __m256i bits = _mm256_castps_si256(words);
    if constexpr (kBits == 2) {
      return _mm256_permutevar8x32_ps(_mm256_setr_ps(-2, -1, 0, 1, -2, -1, 0, 1),
                                      _mm256_srli_epi32(bits, kShift));
    } else {
      const __m256i top = _mm256_slli_epi32(bits, 32 - kBits - kShift);
      return _mm256_cvtepi32_ps(_mm256_srai_epi32(top, 32 - kBits));
    }
  }
  static F Pick8(const float* eight, const int32_t* index) {
    return _mm256_permutevar8x32_ps(_mm256_loadu_ps(eight),
                                    _mm256_loadu_si256(reinterpret_cast<const __m256i*>(index)));
  }
  static F SelectFrom(F v, F other, const int32_t* positions, int32_t oldest) {
    const __m256i older = _mm256_cmpgt_epi32(
        _mm256_set1_epi32(oldest), _mm256_loadu_si256(reinterpret_cast<const __m256i*>(positions)));
    return _mm256_blendv_ps(v, other, _mm256_castsi256_ps(older));
  }
  static F LoadF8(const uint8_t* p) {
    return WidenF8(_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
  }
  static F LoadF8N(const uint8_t* p, int64_t n) {
    alignas(8) uint8_t whole[kLanes] = {};
    for (int64_t i = 0; i < n; ++i) {
      whole[i] = p[i];
    }
    return LoadF8(whole);
  }
  template <int kByte>
  static F SplitF8(F quads) {
    return WidenF8(_mm256_srli_epi32(_mm256_castps_si256(quads), 8 * kByte));
  }

  // Transposes 8x8 32-bit elements in registers.
  [[gnu::always_inline]] static void Transpose(F (&r)[kLanes]) {
    F t[kLanes];
    for (int i = 0; i < kLanes; i += 2) {
      t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
      t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
    }
    for (int i = 0; i < kLanes; i += 4) {
      r[i] = _mm256_shuffle_ps(t[i], t[i + 2], _MM_SHUFFLE(1, 0, 1, 0));
      r[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], _MM_SHUFFLE(3, 2, 3, 2));
      r[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], _MM_SHUFFLE(1, 0, 1, 0));
      r[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], _MM_SHUFFLE(3, 2, 3, 2));
    }
    for (int i = 0; i < 4; ++i) {
      t[i] = _mm256_permute2f128_ps(r[i], r[i + 4], 0x20);
      t[i + 4] = _mm256_permute2f128_ps(r[i], r[i + 4], 0x31);
    }
    for (int i = 0; i < kLanes; ++i) {
      r[i] = t[i];
    }
  }

 private:
  static __m256i Range(int64_t begin, int64_t end) {
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    const __m256i below_end = _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(end)), lane);
    const __m256i below_begin =
        _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(begin)), lane);
    return _mm256_andnot_si256(below_begin, below_end);
  }
  static F Widen(__m128i bits) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
  }
  // fp32 of the fp16 in the high half of every lane: exponent and mantissa move down three bits,
  // and a multiplication by 2^112 corrects the exponent, of subnormal numbers too. Finite numbers
  // only.
  static F WidenF16(__m256i high) {
    const __m256i magnitude = _mm256_and_si256(high, _mm256_set1_epi32(0x7fff0000));
    const F scaled =
        _mm256_mul_ps(_mm256_castsi256_ps(_mm256_srli_epi32(magnitude, 3)), Set(0x1p112f));
    const __m256i sign = _mm256_and_si256(high, _mm256_set1_epi32(INT32_MIN));
    return _mm256_or_ps(scaled, _mm256_castsi256_ps(sign));
  }
  static F WidenF8(__m256i codes) {
    const __m256i magnitude =
        _mm256_and_si256(_mm256_slli_epi32(codes, 20), _mm256_set1_epi32(0x7f << 20));
    const F normal = _mm256_castsi256_ps(_mm256_add_epi32(magnitude, _mm256_set1_epi32(120 << 23)));
    const F subnormal = _mm256_fmsub_ps(normal, _mm256_set1_ps(2.0f), _mm256_set1_ps(0x1p-6f));
    // All bits set is a NaN.
    const __m256i nan = _mm256_cmpeq_epi32(magnitude, _mm256_set1_epi32(0x7f << 20));
    const __m256i sign =
        _mm256_and_si256(_mm256_slli_epi32(codes, 24), _mm256_set1_epi32(INT32_MIN));
    return _mm256_or_ps(_mm256_min_ps(normal, subnormal),
                        _mm256_castsi256_ps(_mm256_or_si256(nan, sign)));
  }
  static __m256i RoundBF16(F v) {
    const __m256i bits = _mm256_castps_si256(v);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i rounded =
        _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
    const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    return _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, nan), 16);
  }
};

}  // namespace baton::kernels::cpu
