// Sixteen fp32 lanes in one AVX-512 register. Only isa_avx512.cc may include this file.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace baton::kernels::cpu {

// The vector interface that every kernel in kernels/cpu/*_inl.h is written over. bf16 values are
// raw bits. A "pair" is a 32-bit lane holding two bf16: element 2k in the low half, 2k + 1 in the
// high.
struct VecAvx512 {
  using F = __m512;
  static constexpr int kLanes = 16;
  // Rows of a matrix tile: 12 x 2 accumulators, 2 columns and a broadcast leave 5 registers.
  static constexpr int kTileRows = 12;

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
