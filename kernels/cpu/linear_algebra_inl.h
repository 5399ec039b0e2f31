// The loops of the eigensolver: the Gram matrix of a token tile in fp32, all else in fp64.
#pragma once

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <cstdint>
#include <cstring>

#include "kernels/cpu/isa_kernels.h"
#include "kernels/cpu/tile_inl.h"

namespace baton::kernels::cpu {

// out = a^T b of two panels [depth][2 kLanes], each element summed in the order of depth.
template <typename V>
void GramPanel(const float* a, const float* b, int64_t depth, float* out) {
  constexpr int kColumns = 2 * V::kLanes;
  constexpr int kRows = V::kLanes >= 16 ? 8 : 4;
  for (int row = 0; row < kColumns; row += kRows) {
    typename V::F sums[kRows][2];
    for (auto& row_sums : sums) {
      row_sums[0] = V::Zero();
      row_sums[1] = V::Zero();
    }
    const float* x = a + row;
    const float* y = b;
    for (int64_t k = 0; k < depth; ++k, x += kColumns, y += kColumns) {
      const typename V::F low = V::Load(y);
      const typename V::F high = V::Load(y + V::kLanes);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        const typename V::F factor = V::Set(x[r]);
        sums[r][0] = V::Fma(factor, low, sums[r][0]);
        sums[r][1] = V::Fma(factor, high, sums[r][1]);
      }
    }
    for (int r = 0; r < kRows; ++r) {
      V::Store(out + (row + r) * kColumns, sums[r][0]);
      V::Store(out + (row + r) * kColumns + V::kLanes, sums[r][1]);
    }
  }
}

// Vectors of fp64 in the compiler's own notation.
template <int kLanes>
struct DoubleVector;
template <>
struct DoubleVector<2> {
  using D [[gnu::vector_size(16)]] = double;
};
template <>
struct DoubleVector<4> {
  using D [[gnu::vector_size(32)]] = double;
};
template <>
struct DoubleVector<8> {
  using D [[gnu::vector_size(64)]] = double;
};

// fp64 vectors as wide as V's; fused where the machine does so.
template <typename V>
struct Doubles {
  static constexpr int kLanes = V::kLanes / 2;
  using D = typename DoubleVector<kLanes>::D;

  [[gnu::always_inline]] static D Load(const double* p) {
    D v;
    std::memcpy(&v, p, sizeof(v));
    return v;
  }
  [[gnu::always_inline]] static void Store(double* p, D v) { std::memcpy(p, &v, sizeof(v)); }
  [[gnu::always_inline]] static D Set(double value) {
#if defined(__AVX512F__)
    if constexpr (kLanes == 8) {
      return _mm512_set1_pd(value);
    }
#endif
#if defined(__AVX__)
    if constexpr (kLanes == 4) {
      return _mm256_set1_pd(value);
    }
#endif
    D v;
    for (int i = 0; i < kLanes; ++i) {
      v[i] = value;
    }
    return v;
  }
  // x * y + sum.
  [[gnu::always_inline]] static D Fma(D x, D y, D sum) {
#if defined(__AVX512F__)
    if constexpr (kLanes == 8) {
      return _mm512_fmadd_pd(x, y, sum);
    }
#endif
#if defined(__FMA__)
    if constexpr (kLanes == 4) {
      return _mm256_fmadd_pd(x, y, sum);
    }
#endif
    return x * y + sum;
  }
};

// One tile of kRows rows and `columns` columns, two vectors at a time.
template <typename V, int kRows>
[[gnu::always_inline]] inline void MatmulRowsF64(const MatmulF64Task& task, int64_t row) {
  using D = typename Doubles<V>::D;
  constexpr int kLanes = Doubles<V>::kLanes;
  const double* a = task.a + row * task.a_stride;
  double* out = task.out + row * task.out_stride;
  int64_t column = 0;
  for (; column + 2 * kLanes <= task.columns; column += 2 * kLanes) {
    D sums[kRows][2] = {};
    for (int64_t k = 0; k < task.depth; ++k) {
      const D low = Doubles<V>::Load(task.b + k * task.b_stride + column);
      const D high = Doubles<V>::Load(task.b + k * task.b_stride + column + kLanes);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        const D x = Doubles<V>::Set(a[r * task.a_stride + k]);
        sums[r][0] = Doubles<V>::Fma(x, low, sums[r][0]);
        sums[r][1] = Doubles<V>::Fma(x, high, sums[r][1]);
      }
    }
    for (int r = 0; r < kRows; ++r) {
      Doubles<V>::Store(out + r * task.out_stride + column, sums[r][0]);
      Doubles<V>::Store(out + r * task.out_stride + column + kLanes, sums[r][1]);
    }
  }
  for (; column < task.columns; ++column) {
    for (int r = 0; r < kRows; ++r) {
      double sum = 0.0;
      for (int64_t k = 0; k < task.depth; ++k) {
        sum += a[r * task.a_stride + k] * task.b[k * task.b_stride + column];
      }
      out[r * task.out_stride + column] = sum;
    }
  }
}

template <typename V>
void MatmulF64(const MatmulF64Task& task) {
  constexpr int kRows = V::kLanes >= 16 ? 8 : 4;
  for (int64_t row = 0; row < task.rows; row += kRows) {
    const int64_t rows = task.rows - row < kRows ? task.rows - row : kRows;
    WithRows<kRows>(rows, [&]<int kCount>() { MatmulRowsF64<V, kCount>(task, row); });
  }
}

template <typename V>
double DotF64(const double* x, const double* y, int64_t n) {
  using D = typename Doubles<V>::D;
  constexpr int kLanes = Doubles<V>::kLanes;
  D sums[4] = {};
  int64_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      const D a = Doubles<V>::Load(x + i + j * kLanes);
      sums[j] = Doubles<V>::Fma(a, Doubles<V>::Load(y + i + j * kLanes), sums[j]);
    }
  }
  const D total = (sums[0] + sums[1]) + (sums[2] + sums[3]);
  double sum = 0.0;
  for (int j = 0; j < kLanes; ++j) {
    sum += total[j];
  }
  for (; i < n; ++i) {
    sum += x[i] * y[i];
  }
  return sum;
}

// y += factor * x.
template <typename V>
void AddScaledF64(double factor, const double* x, double* y, int64_t n) {
  using D = typename Doubles<V>::D;
  constexpr int kLanes = Doubles<V>::kLanes;
  const D factors = Doubles<V>::Set(factor);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const D b = Doubles<V>::Load(y + i);
    Doubles<V>::Store(y + i, Doubles<V>::Fma(factors, Doubles<V>::Load(x + i), b));
  }
  for (; i < n; ++i) {
    y[i] += factor * x[i];
  }
}

// (x, y) = (cosine x - sine y, sine x + cosine y).
template <typename V>
void RotateF64(double* x, double* y, double cosine, double sine, int64_t n) {
  using D = typename Doubles<V>::D;
  constexpr int kLanes = Doubles<V>::kLanes;
  const D cosines = Doubles<V>::Set(cosine);
  const D sines = Doubles<V>::Set(sine);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const D a = Doubles<V>::Load(x + i);
    const D b = Doubles<V>::Load(y + i);
    Doubles<V>::Store(x + i, Doubles<V>::Fma(cosines, a, -sines * b));
    Doubles<V>::Store(y + i, Doubles<V>::Fma(sines, a, cosines * b));
  }
  for (; i < n; ++i) {
    const double a = x[i];
    const double b = y[i];
    x[i] = cosine * a - sine * b;
    y[i] = sine * a + cosine * b;
  }
}

}  // namespace baton::kernels::cpu
