// Exponentials over a vector wrapper.
#pragma once

namespace baton::kernels::cpu {

// 2^n * 2^f where x >= -126, else 0 (so for -inf too). n is whole, |f| <= 1/2. 2^f is the degree-6
// polynomial of Cephes exp2f (relative error 1.7e-7); it is exactly 1 at f = 0.
template <typename V>
[[gnu::always_inline]] inline typename V::F Exp2Parts(typename V::F n,
                                                      typename V::F f,
                                                      typename V::F x) {
  typename V::F p = V::Set(1.535336188319500e-4f);
  p = V::Fma(p, f, V::Set(1.339887440266574e-3f));
  p = V::Fma(p, f, V::Set(9.618437357674640e-3f));
  p = V::Fma(p, f, V::Set(5.550332471162809e-2f));
  p = V::Fma(p, f, V::Set(2.402264791363012e-1f));
  p = V::Fma(p, f, V::Set(6.931472028550421e-1f));
  p = V::Fma(p, f, V::Set(1.0f));
  return V::ScaleOrZero(p, n, x, V::Set(-126.0f));
}

// 2^x for x <= 127; 0 below -126.
template <typename V>
[[gnu::always_inline]] inline typename V::F Exp2(typename V::F x) {
  const typename V::F clamped = V::Max(x, V::Set(-126.0f));
  const typename V::F n = V::Round(clamped);
  return Exp2Parts<V>(n, V::Sub(clamped, n), x);
}

// e^x for x <= 88; 0 below -87.3. log2(e) is used in two parts so that the fraction keeps its bits
// when |x| is large.
template <typename V>
[[gnu::always_inline]] inline typename V::F Exp(typename V::F x) {
  const typename V::F log2e = V::Set(1.44269502f);
  const typename V::F log2e_rest = V::Set(1.92596299e-8f);
  const typename V::F product = V::Mul(x, log2e);
  const typename V::F n = V::Round(V::Max(product, V::Set(-126.0f)));
  const typename V::F f = V::Fma(x, log2e_rest, V::Fma(x, log2e, V::Sub(V::Zero(), n)));
  return Exp2Parts<V>(n, f, product);
}

}  // namespace baton::kernels::cpu
