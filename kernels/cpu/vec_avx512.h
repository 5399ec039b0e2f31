// Sixteen fp32 lanes in one AVX-512 register. Only isa_avx512.cc may include this file.
#pragma once

#include <immintrin.h>

#include <algorithm>
#include <cstdint>

#include "kernels/kv_format/unobserved_range.h"

namespace baton::kernels::cpu {

// The vector interface that every kernel in kernels/cpu/*_inl.h is written over. bf16 values are
// raw bits. A "pair" is a 32-bit lane holding two bf16: element 2k in the low half, 2k + 1 in the
// high.
struct VecAvx512 {
  using F = __m512;
  static constexpr int kLanes = 16;
  // Rows of a matrix tile: 12 x 2 accumulators, 2 columns and a broadcast leave 5 registers.
  static constexpr int kTileRows = 12;
  // Query heads of a quantized tile: 8 x 2 accumulators, codes, weights and tables.
  static constexpr int kQuantHeads = 8;

  static F Zero() { return _mm512_setzero_ps(); }
  static F Set(float value) { return _mm512_set1_ps(value); }
  static F Load(const float* p) { return _mm512_loadu_ps(p); }
  static F LoadN(const float* p, int64_t n) { return _mm512_maskz_loadu_ps(FirstN(n), p); }
  static void Store(float* p, F v) { _mm512_storeu_ps(p, v); }
  static void StoreN(float* p, F v, int64_t n) { _mm512_mask_storeu_ps(p, FirstN(n), v); }

  static F Add(F a, F b) { return _mm512_add_ps(a, b); }
  static F Sub(F a, F b) { return _mm512_sub_ps(a, b); }
  static F Mul(F a, F b) { return _mm512_mul_ps(a, b); }
  static F Div(F a, F b) { return _mm512_div_ps(a, b); }
  static F Max(F a, F b) { return _mm512_max_ps(a, b); }
  static F Fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
  static F Round(F a) {
    return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
  // value * 2^exponent where x >= limit, else 0; exponent is a whole number.
  static F ScaleOrZero(F value, F exponent, F x, F limit) {
    return _mm512_maskz_scalef_ps(_mm512_cmp_ps_mask(x, limit, _CMP_GE_OQ), value, exponent);
  }
  // Lanes [begin, end) of v, zero elsewhere.
  static F KeepRange(F v, int64_t begin, int64_t end) {
    return _mm512_maskz_mov_ps(Range(begin, end), v);
  }
  // Lanes [begin, end) of v, `other` elsewhere.
  static F SelectRange(F v, F other, int64_t begin, int64_t end) {
    return _mm512_mask_mov_ps(other, Range(begin, end), v);
  }
  static float ReduceAdd(F v) { return _mm512_reduce_add_ps(v); }
  static float ReduceMax(F v) { return _mm512_reduce_max_ps(v); }

  static F LoadBF16(const uint16_t* p) {
    return Widen(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  static F LoadBF16N(const uint16_t* p, int64_t n) {
    return Widen(_mm256_maskz_loadu_epi16(FirstN(n), p));
  }
  static void LoadPairs(const uint16_t* p, F& even, F& odd) {
    SplitPairs(_mm512_loadu_ps(reinterpret_cast<const float*>(p)), even, odd);
  }
  static void SplitPairs(F pairs, F& even, F& odd) {
    const __m512i bits = _mm512_castps_si512(pairs);
    even = _mm512_castsi512_ps(_mm512_slli_epi32(bits, 16));
    odd = _mm512_castsi512_ps(_mm512_and_si512(bits, _mm512_set1_epi32(-65536)));
  }
  // Rounds to nearest, ties to even; a NaN stays a quiet NaN (as F32ToBF16 in kernels/core/half.h).
  static void StoreBF16(uint16_t* p, F v) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(RoundBF16(v)));
  }
  static void StoreBF16N(uint16_t* p, F v, int64_t n) {
    _mm256_mask_storeu_epi16(p, FirstN(n), _mm512_cvtepi32_epi16(RoundBF16(v)));
  }

  // Whole numbers in [0, 255] as bytes.
  static void StoreBytes(uint8_t* p, F v) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(v)));
  }
  // Of every positions[i]: ObservedPositions(ranges, count, positions[i], position).
  static F AgesFrom(const int32_t* positions,
                    int32_t position,
                    const UnobservedRange* ranges,
                    int32_t count) {
    const __m512i stored = _mm512_loadu_si512(positions);
    __m512i age = _mm512_sub_epi32(_mm512_set1_epi32(position), stored);
    for (int32_t i = 0; i < count; ++i) {
      const UnobservedRange& range = ranges[i];
      const __m512i begin = _mm512_max_epi32(stored, _mm512_set1_epi32(range.begin));
      const __m512i before =
          _mm512_sub_epi32(begin, _mm512_srl_epi32(begin, _mm_cvtsi32_si128(range.observed_shift)));
      const __m512i left_out =
          _mm512_sub_epi32(_mm512_set1_epi32(range.Before(std::min(range.end, position))), before);
      age = _mm512_sub_epi32(age, _mm512_max_epi32(left_out, _mm512_setzero_si512()));
    }
    return _mm512_cvtepi32_ps(age);
  }
  // v where first <= positions[i] <= last, `other` elsewhere.
  static F SelectBetween(const int32_t* positions, int32_t first, int32_t last, F v, F other) {
    const __m512i stored = _mm512_loadu_si512(positions);
    const __mmask16 between = _mm512_cmpge_epi32_mask(stored, _mm512_set1_epi32(first)) &
                              _mm512_cmple_epi32_mask(stored, _mm512_set1_epi32(last));
    return _mm512_mask_mov_ps(other, between, v);
  }
  // v where x >= limit, `other` elsewhere.
  static F SelectAtLeast(F x, F limit, F v, F other) {
    return _mm512_mask_mov_ps(other, _mm512_cmp_ps_mask(x, limit, _CMP_GE_OQ), v);
  }

  // fp16 pairs to fp32: the low and the high half of every 32-bit lane.
  static void SplitF16(F pairs, F& low, F& high) {
    const __m512i bits = _mm512_castps_si512(pairs);
    low = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(bits));
    high = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32(bits, 16)));
  }
  // Codes of kBits bits, lowest first in every lane's word: PrepareCodes once, then Code for each
  // shift gives code - 2^(kBits - 1). Up to 4 bits a register permutation is the table.
  template <int kBits>
  static F PrepareCodes(F words) {
    if constexpr (kBits == 8) {
      return _mm512_castsi512_ps(
          _mm512_xor_si512(_mm512_castps_si512(words), _mm512_set1_epi32(-0x7f7f7f80)));
    }
    return words;
  }
  template <int kBits, int kShift>
  static F Code(F words) {
    const __m512i bits = _mm512_castps_si512(words);
    if constexpr (kBits == 8) {
      return _mm512_cvtepi32_ps(_mm512_srai_epi32(_mm512_slli_epi32(bits, 24 - kShift), 24));
    } else {
      const F table = kBits == 4
                          ? _mm512_setr_ps(-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7)
                          : _mm512_setr_ps(-2, -1, 0, 1, -2, -1, 0, 1, -2, -1, 0, 1, -2, -1, 0, 1);
      return _mm512_permutexvar_ps(_mm512_srli_epi32(bits, kShift), table);
    }
  }
  // Lane i is eight[index[i]].
  static F Pick8(const float* eight, const int32_t* index) {
    return _mm512_permutexvar_ps(_mm512_loadu_si512(index),
                                 _mm512_castps256_ps512(_mm256_loadu_ps(eight)));
  }
  // v where positions[i] >= oldest, `other` elsewhere.
  static F SelectFrom(F v, F other, const int32_t* positions, int32_t oldest) {
    return _mm512_mask_mov_ps(
        other,
        _mm512_cmpge_epi32_mask(_mm512_loadu_si512(positions), _mm512_set1_epi32(oldest)),
        v);
  }
  // Lanes of float8_e4m3fn codes (kernels/core/float8.h): kLanes bytes of p, the first n with zeros
  // behind, or byte kByte of every 32-bit lane. 2 x (the exponent and mantissa as those of a normal
  // number) - 2^-6 is the value of a subnormal and above that of a normal.
  static F LoadF8(const uint8_t* p) {
    return WidenF8<0>(_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
  }
  static F LoadF8N(const uint8_t* p, int64_t n) {
    return WidenF8<0>(_mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8(FirstN(n), p)));
  }
  template <int kByte>
  static F SplitF8(F quads) {
    return WidenF8<kByte>(_mm512_castps_si512(quads));
  }

  // Transposes a square of kLanes x kLanes 32-bit elements in registers: 16x16 as four rounds of
  // butterfly shuffles (pairs, quads, then 128-bit lanes twice).
  [[gnu::always_inline]] static void Transpose(F (&r)[kLanes]) {
    F t[kLanes];
    for (int i = 0; i < kLanes; i += 2) {
      t[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
      t[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
    }
    for (int i = 0; i < kLanes; i += 4) {
      r[i] = UnpackLow64(t[i], t[i + 2]);
      r[i + 1] = UnpackHigh64(t[i], t[i + 2]);
      r[i + 2] = UnpackLow64(t[i + 1], t[i + 3]);
      r[i + 3] = UnpackHigh64(t[i + 1], t[i + 3]);
    }
    for (int i = 0; i < 4; ++i) {
      t[i] = _mm512_shuffle_f32x4(r[i], r[i + 4], 0x88);
      t[i + 4] = _mm512_shuffle_f32x4(r[i], r[i + 4], 0xdd);
      t[i + 8] = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0x88);
      t[i + 12] = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0xdd);
    }
    for (int i = 0; i < 8; ++i) {
      r[i] = _mm512_shuffle_f32x4(t[i], t[i + 8], 0x88);
      r[i + 8] = _mm512_shuffle_f32x4(t[i], t[i + 8], 0xdd);
    }
  }

 private:
  static __mmask16 FirstN(int64_t n) { return static_cast<__mmask16>((1u << n) - 1u); }
  static __mmask16 Range(int64_t begin, int64_t end) {
    return static_cast<__mmask16>(FirstN(end) & ~FirstN(begin));
  }
  static F Widen(__m256i bits) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
  }
  template <int kByte>
  static F WidenF8(__m512i quads) {
    const __m512i mask = _mm512_set1_epi32(0x7f << 20);
    const __m512i magnitude =
        _mm512_and_si512(kByte < 3 ? _mm512_slli_epi32(quads, kByte < 3 ? 20 - 8 * kByte : 0)
                                   : _mm512_srli_epi32(quads, 4),
                         mask);
    const F normal = _mm512_castsi512_ps(_mm512_add_epi32(magnitude, _mm512_set1_epi32(120 << 23)));
    const F subnormal = _mm512_fmsub_ps(normal, _mm512_set1_ps(2.0f), _mm512_set1_ps(0x1p-6f));
    const __m512i value = _mm512_castps_si512(_mm512_min_ps(normal, subnormal));
    // All bits set is a NaN.
    const __m512i number =
        _mm512_mask_set1_epi32(value, _mm512_cmpeq_epi32_mask(magnitude, mask), -1);
    constexpr int kAndOr = 0xea;  // (a & b) | c
    return _mm512_castsi512_ps(_mm512_ternarylogic_epi32(
        _mm512_slli_epi32(quads, 24 - 8 * kByte), _mm512_set1_epi32(INT32_MIN), number, kAndOr));
  }
  static __m512i RoundBF16(F v) {
    const __m512i bits = _mm512_castps_si512(v);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i rounded =
        _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    const __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
    const __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
    return _mm512_srli_epi32(_mm512_mask_mov_epi32(rounded, nan, quiet), 16);
  }
  static F UnpackLow64(F a, F b) {
    return _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(a), _mm512_castps_pd(b)));
  }
  static F UnpackHigh64(F a, F b) {
    return _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(a), _mm512_castps_pd(b)));
  }
};

}  // namespace baton::kernels::cpu
