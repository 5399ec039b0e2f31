// Dots of fp32 lines with rows that are not packed: landmarks, basis rows, unpacked keys.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "kernels/cpu/elementwise_inl.h"
#include "kernels/cpu/exp_inl.h"
#include "kernels/cpu/isa_kernels.h"
#include "kernels/cpu/tile_inl.h"

namespace baton::kernels::cpu {

template <typename V, bool kBF16>
[[gnu::always_inline]] inline typename V::F LoadRow(const std::byte* row, int64_t i, int64_t n) {
  if constexpr (kBF16) {
    const auto* p = reinterpret_cast<const uint16_t*>(row) + i;
    return n == V::kLanes ? V::LoadBF16(p) : V::LoadBF16N(p, n);
  } else {
    return LoadUpTo<V>(reinterpret_cast<const float*>(row) + i, n);
  }
}

// kLines lines against every row. A line's sum has one order, whatever kLines is.
template <typename V, bool kBF16, int kLines>
void DotLines(const DotRowsTask& task, int64_t line) {
  constexpr size_t kElement = kBF16 ? 2 : 4;
  const float* x = task.x + line * task.x_stride;
  const int64_t whole = task.depth / V::kLanes * V::kLanes;
  for (int64_t row = 0; row < task.count; ++row) {
    const std::byte* data = task.rows + static_cast<size_t>(row * task.row_stride) * kElement;
    typename V::F sums[kLines];
    for (auto& sum : sums) {
      sum = V::Zero();
    }
    for (int64_t i = 0; i < whole; i += V::kLanes) {
      const typename V::F v = LoadRow<V, kBF16>(data, i, V::kLanes);
#pragma GCC unroll 8
      for (int l = 0; l < kLines; ++l) {
        sums[l] = V::Fma(V::Load(x + l * task.x_stride + i), v, sums[l]);
      }
    }
    if (whole < task.depth) {
      const int64_t n = task.depth - whole;
      const typename V::F v = LoadRow<V, kBF16>(data, whole, n);
      for (int l = 0; l < kLines; ++l) {
        sums[l] = V::Fma(V::LoadN(x + l * task.x_stride + whole, n), v, sums[l]);
      }
    }
    for (int l = 0; l < kLines; ++l) {
      float* out = task.out + (line + l) * task.out_stride + row;
      const float sum = V::ReduceAdd(sums[l]);
      *out = task.accumulate ? *out + sum : sum;
    }
  }
}

// Lines at once: their sums, one row's vector and an operand have to fit the registers.
template <typename V>
inline constexpr int kDotLines = V::kLanes >= 16 ? 8 : 4;

template <typename V>
void DotRows(const DotRowsTask& task) {
  constexpr int kLines = kDotLines<V>;
  for (int64_t line = 0; line < task.lines; line += kLines) {
    const int64_t lines = task.lines - line < kLines ? task.lines - line : kLines;
    WithRows<kLines>(lines, [&]<int kCount>() {
      if (task.bf16) {
        DotLines<V, true, kCount>(task, line);
      } else {
        DotLines<V, false, kCount>(task, line);
      }
    });
  }
}

template <typename V>
float MaxElement(const float* x, int64_t n) {
  const typename V::F lowest = V::Set(-std::numeric_limits<float>::infinity());
  typename V::F largest = lowest;
  ForEachVector<V>(n, [&](int64_t i, int64_t count) {
    largest = V::Max(largest, V::SelectRange(LoadUpTo<V>(x + i, count), lowest, 0, count));
  });
  return V::ReduceMax(largest);
}

// x = e^(x - max x); returns the maximum. All zeros if every element is -inf.
template <typename V>
float ExpBelowMax(float* x, int64_t n) {
  const float max = MaxElement<V>(x, n);
  if (max == -std::numeric_limits<float>::infinity()) {
    std::fill_n(x, n, 0.0f);
    return max;
  }
  ForEachVector<V>(n, [&](int64_t i, int64_t count) {
    V::StoreN(x + i, Exp<V>(V::Sub(LoadUpTo<V>(x + i, count), V::Set(max))), count);
  });
  return max;
}

// log(sum e^x), -inf elements count nothing; at least one element is finite.
template <typename V>
float LogSumExp(const float* x, int64_t n) {
  const float max = MaxElement<V>(x, n);
  typename V::F sum = V::Zero();
  ForEachVector<V>(n, [&](int64_t i, int64_t count) {
    const typename V::F weight = Exp<V>(V::Sub(LoadUpTo<V>(x + i, count), V::Set(max)));
    sum = V::Add(sum, V::KeepRange(weight, 0, count));
  });
  return max + std::log(V::ReduceAdd(sum));
}

}  // namespace baton::kernels::cpu
