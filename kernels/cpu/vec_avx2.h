// Eight fp32 lanes in one AVX2 register. Only isa_avx2.cc may include this file.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace baton::kernels::cpu {

// The interface of VecAvx512 (vec_avx512.h) over AVX2 and FMA.
struct VecAvx2 {
  using F = __m256;
  static constexpr int kLanes = 8;
  // Rows of a matrix tile: 6 x 2 accumulators, 2 columns and a broadcast fill 15 of 16 registers.
  static constexpr int kTileRows = 6;

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
