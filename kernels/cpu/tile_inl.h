// The register tile that matmul and attention are made of.
#pragma once

#include <cstddef>
#include <cstdint>

namespace baton::kernels::cpu {

// How a tile reads two vectors of columns: fp32 as they are, or bf16 pairs (column c and column
// c + kLanes share a 32-bit lane) widened on the way.
template <typename V>
struct LoadF32 {
  using Element = float;
  [[gnu::always_inline]] static void Two(const float* p, typename V::F& low, typename V::F& high) {
    low = V::Load(p);
    high = V::Load(p + V::kLanes);
  }
};
template <typename V>
struct LoadPairsBF16 {
  using Element = uint16_t;
  [[gnu::always_inline]] static void Two(const uint16_t* p,
                                         typename V::F& low,
                                         typename V::F& high) {
    V::LoadPairs(p, low, high);
  }
};

// sums[r][c] = fma(a[r][k], b[k][c], sums[r][c]) for k = 0 .. depth - 1 in this order, for kRows
// rows and kPanels panels of two vectors. The order of an element's sum is the same for every kRows
// and kPanels. Row addresses are formed from one pointer per three rows, which fits the registers.
template <typename V, typename Load, int kRows, int kPanels>
[[gnu::always_inline]] inline void MultiplyAdd(const float* a,
                                               int64_t a_stride,
                                               int64_t depth,
                                               const typename Load::Element* b,
                                               int64_t b_stride,
                                               int64_t panel_stride,
                                               typename V::F (&sums)[kRows][2 * kPanels]) {
  constexpr int kBases = (kRows + 2) / 3;
  const float* base[kBases];
  for (int i = 0; i < kBases; ++i) {
    base[i] = a + 3 * i * a_stride;
  }
  for (int64_t k = 0; k < depth; ++k) {
    typename V::F columns[2 * kPanels];
#pragma GCC unroll 8
    for (int p = 0; p < kPanels; ++p) {
      Load::Two(b + p * panel_stride, columns[2 * p], columns[2 * p + 1]);
    }
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const typename V::F x = V::Set(base[r / 3][(r % 3) * a_stride]);
#pragma GCC unroll 16
      for (int c = 0; c < 2 * kPanels; ++c) {
        sums[r][c] = V::Fma(x, columns[c], sums[r][c]);
      }
    }
#pragma GCC unroll 8
    for (int i = 0; i < kBases; ++i) {
      ++base[i];
    }
    b += b_stride;
  }
}

// Calls body.template operator()<R>() with R == rows, 1 <= rows <= kMaxRows.
template <int kMaxRows, typename Body>
[[gnu::always_inline]] inline void WithRows(int64_t rows, Body&& body) {
  if constexpr (kMaxRows > 1) {
    if (rows < kMaxRows) {
      WithRows<kMaxRows - 1>(rows, body);
      return;
    }
  }
  body.template operator()<kMaxRows>();
}

// Splits `rows` into tiles of nearly equal height, none above V::kTileRows, and calls
// body.template operator()<height>(first row) for each: 16 rows are 8 + 8 rather than 12 + 4, which
// would leave the short tile waiting for its FMAs.
template <typename V, typename Body>
[[gnu::always_inline]] inline void ForTiles(int64_t rows, Body&& body) {
  const int64_t tiles = (rows + V::kTileRows - 1) / V::kTileRows;
  int64_t row = 0;
  for (int64_t left = tiles; left > 0; --left) {
    const int64_t height = (rows - row + left - 1) / left;
    WithRows<V::kTileRows>(height, [&]<int kRows>() { body.template operator()<kRows>(row); });
    row += height;
  }
}

}  // namespace baton::kernels::cpu
