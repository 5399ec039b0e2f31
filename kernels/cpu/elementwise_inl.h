// Row-wise ops over a vector wrapper. A row is always worked on whole, by one thread, in one order.
#pragma once

#include "kernels/cpu/exp_inl.h"
#include "kernels/cpu/isa_kernels.h"

namespace baton::kernels::cpu {

// Calls body(offset, count) for every vector of a row; count < kLanes only in the last.
template <typename V, typename Body>
[[gnu::always_inline]] inline void ForEachVector(int64_t n, Body&& body) {
  for (int64_t i = 0; i < n; i += V::kLanes) {
    body(i, n - i < V::kLanes ? n - i : V::kLanes);
  }
}

template <typename V>
[[gnu::always_inline]] inline typename V::F LoadUpTo(const float* p, int64_t n) {
  return n == V::kLanes ? V::Load(p) : V::LoadN(p, n);
}

template <typename V>
[[gnu::always_inline]] inline void StoreUpTo(float* p, typename V::F v, int64_t n) {
  if (n == V::kLanes) {
    V::Store(p, v);
  } else {
    V::StoreN(p, v, n);
  }
}

// Four partial sums per lane: short dependency chains, and less rounding than one running sum.
template <typename V>
void RmsNormRow(const float* x, const float* weight, float epsilon, int64_t dim, float* out) {
  typename V::F sums[4] = {V::Zero(), V::Zero(), V::Zero(), V::Zero()};
  ForEachVector<V>(dim, [&](int64_t i, int64_t n) {
    const typename V::F v = LoadUpTo<V>(x + i, n);
    typename V::F& sum = sums[(i / V::kLanes) % 4];
    sum = V::Fma(v, v, sum);
  });
  const typename V::F total = V::Add(V::Add(sums[0], sums[1]), V::Add(sums[2], sums[3]));
  const float mean = V::ReduceAdd(total) / static_cast<float>(dim);
  const typename V::F inverse = V::Set(1.0f / __builtin_sqrtf(mean + epsilon));
  ForEachVector<V>(dim, [&](int64_t i, int64_t n) {
    const typename V::F v = V::Mul(LoadUpTo<V>(x + i, n), inverse);
    StoreUpTo<V>(out + i, V::Mul(v, LoadUpTo<V>(weight + i, n)), n);
  });
}

// silu(g) u = g u / (1 + e^-g). Gates below -87 count as -87, where silu is -1.4e-36: e^-g would
// leave fp32's range. The order of Max's operands lets a NaN through.
template <typename V>
void SiluMulRow(const float* gate, const float* up, int64_t dim, float* out) {
  ForEachVector<V>(dim, [&](int64_t i, int64_t n) {
    const typename V::F g = V::Max(V::Set(-87.0f), LoadUpTo<V>(gate + i, n));
    const typename V::F denominator = V::Add(V::Set(1.0f), Exp<V>(V::Sub(V::Zero(), g)));
    StoreUpTo<V>(out + i, V::Mul(V::Div(g, denominator), LoadUpTo<V>(up + i, n)), n);
  });
}

template <typename V>
void RopeHead(float* x, const float* cosines, const float* sines, int64_t half_dim) {
  ForEachVector<V>(half_dim, [&](int64_t i, int64_t n) {
    const typename V::F cosine = LoadUpTo<V>(cosines + i, n);
    const typename V::F sine = LoadUpTo<V>(sines + i, n);
    const typename V::F first = LoadUpTo<V>(x + i, n);
    const typename V::F second = LoadUpTo<V>(x + i + half_dim, n);
    StoreUpTo<V>(x + i, V::Sub(V::Mul(first, cosine), V::Mul(second, sine)), n);
    StoreUpTo<V>(x + i + half_dim, V::Add(V::Mul(second, cosine), V::Mul(first, sine)), n);
  });
}

template <typename V>
void WidenRow(const uint16_t* x, int64_t n, float* out) {
  ForEachVector<V>(n, [&](int64_t i, int64_t count) {
    StoreUpTo<V>(
        out + i, count == V::kLanes ? V::LoadBF16(x + i) : V::LoadBF16N(x + i, count), count);
  });
}

template <typename V>
void NarrowRow(const float* x, int64_t n, uint16_t* out) {
  ForEachVector<V>(n, [&](int64_t i, int64_t count) {
    const typename V::F v = LoadUpTo<V>(x + i, count);
    if (count == V::kLanes) {
      V::StoreBF16(out + i, v);
    } else {
      V::StoreBF16N(out + i, v, count);
    }
  });
}

}  // namespace baton::kernels::cpu
