// Quantization of a vector, and the search for a generation step's victims. Both give the bits of
// the scalar code in kernels/kv_format/quantize.h and kernels/ops/diffkv_policy.h: divisions are
// true ones and nothing is fused.
#pragma once

#include <cstdint>
#include <limits>

#include "kernels/core/half.h"
#include "kernels/cpu/isa_kernels.h"
#include "kernels/kv_format/quantize.h"

namespace baton::kernels::cpu {

// QuantizeVector; n that is no multiple of kLanes goes to the scalar code.
template <typename V>
QuantRange QuantizeRow(const float* x, int64_t n, int32_t bits, uint8_t* codes) {
  if (n < V::kLanes || n % V::kLanes != 0) {
    return QuantizeVector(x, n, bits, codes);
  }
  typename V::F max = V::Load(x);
  typename V::F negated_min = V::Sub(V::Zero(), max);
  for (int64_t i = V::kLanes; i < n; i += V::kLanes) {
    const typename V::F v = V::Load(x + i);
    max = V::Max(max, v);
    negated_min = V::Max(negated_min, V::Sub(V::Zero(), v));
  }
  const QuantRange range = FitQuantRange(-V::ReduceMax(negated_min), V::ReduceMax(max), bits);
  const typename V::F zero = V::Set(F16ToF32(range.zero));
  const typename V::F divisor = V::Set(QuantDivisor(range));
  const typename V::F negated_levels = V::Set(-static_cast<float>(QuantLevels(bits)));
  for (int64_t i = 0; i < n; i += V::kLanes) {
    const typename V::F code = V::Round(V::Div(V::Sub(V::Load(x + i), zero), divisor));
    const typename V::F capped = V::Sub(V::Zero(), V::Max(V::Sub(V::Zero(), code), negated_levels));
    V::StoreBytes(codes + i, V::Max(capped, V::Zero()));
  }
  return range;
}

template <typename V>
float LeastMean(const float* scores,
                const int32_t* positions,
                int64_t n,
                const SurveyLimits& limits) {
  constexpr float kNone = std::numeric_limits<float>::infinity();
  const typename V::F none = V::Set(kNone);
  const typename V::F least_age = V::Set(1.0f);
  typename V::F negated = V::Set(-kNone);
  for (int64_t i = 0; i < n; i += V::kLanes) {
    const typename V::F age = V::SelectBetween(
        positions + i,
        limits.sinks,
        limits.newest,
        V::AgesFrom(positions + i, limits.position, limits.unobserved, limits.unobserved_count),
        V::Zero());
    const typename V::F mean = V::Div(V::Load(scores + i), age);
    typename V::F competing = V::SelectAtLeast(age, least_age, mean, none);
    if (n - i < V::kLanes) {
      competing = V::SelectRange(competing, none, 0, n - i);
    }
    negated = V::Max(negated, V::Sub(V::Zero(), competing));
  }
  return -V::ReduceMax(negated);
}

}  // namespace baton::kernels::cpu
