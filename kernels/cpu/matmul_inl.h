// Register-tiled matmul over packed panels.
#pragma once

#include "kernels/cpu/isa_kernels.h"
#include "kernels/cpu/tile_inl.h"

namespace baton::kernels::cpu {

// out = sum (+ bias) (+ out) for one vector of at most kLanes columns.
template <typename V>
[[gnu::always_inline]] inline void StoreColumns(const PanelTask& task,
                                                int64_t row,
                                                int64_t column,
                                                typename V::F sum) {
  const int64_t n = task.columns - column;
  float* out = task.out + row * task.out_stride + column;
  if (n >= V::kLanes) {
    if (task.bias != nullptr) {
      sum = V::Add(sum, V::Load(task.bias + column));
    }
    if (task.accumulate) {
      sum = V::Add(sum, V::Load(out));
    }
    V::Store(out, sum);
  } else if (n > 0) {
    if (task.bias != nullptr) {
      sum = V::Add(sum, V::LoadN(task.bias + column, n));
    }
    if (task.accumulate) {
      sum = V::Add(sum, V::LoadN(out, n));
    }
    V::StoreN(out, sum, n);
  }
}

template <typename V, typename Load, int kRows, int kPanels>
void MatmulTile(const PanelTask& task, int64_t row, int64_t panel) {
  constexpr int64_t kPanelColumns = 2 * V::kLanes;
  const auto* b =
      static_cast<const typename Load::Element*>(task.panel) + panel * task.panel_stride;
  typename V::F sums[kRows][2 * kPanels];
  for (auto& row_sums : sums) {
    for (auto& sum : row_sums) {
      sum = V::Zero();
    }
  }
  MultiplyAdd<V, Load, kRows, kPanels>(task.x + row * task.x_stride,
                                       task.x_stride,
                                       task.depth,
                                       b,
                                       kPanelColumns,
                                       task.panel_stride,
                                       sums);
  for (int r = 0; r < kRows; ++r) {
    for (int c = 0; c < 2 * kPanels; ++c) {
      StoreColumns<V>(task, row + r, panel * kPanelColumns + c * V::kLanes, sums[r][c]);
    }
  }
}

// One tile of kRows rows over every panel of the task: as many panels at once as the registers
// hold, so that a single row still has enough independent sums to hide the latency of an FMA.
template <typename V, typename Load, int kRows>
void MatmulRows(const PanelTask& task, int64_t row, int64_t panels) {
  constexpr int kFit = V::kTileRows / kRows;
  constexpr int kPanels = kFit >= 4 ? 4 : (kFit >= 2 ? 2 : 1);
  int64_t panel = 0;
  for (; panel + kPanels <= panels; panel += kPanels) {
    MatmulTile<V, Load, kRows, kPanels>(task, row, panel);
  }
  for (; panel < panels; ++panel) {
    MatmulTile<V, Load, kRows, 1>(task, row, panel);
  }
}

template <typename V, typename Load>
void MatmulPanels(const PanelTask& task) {
  const int64_t panels = (task.columns + 2 * V::kLanes - 1) / (2 * V::kLanes);
  ForTiles<V>(task.rows,
              [&]<int kRows>(int64_t row) { MatmulRows<V, Load, kRows>(task, row, panels); });
}

template <typename V>
void WidenPanel(const uint16_t* panel, int64_t depth, float* out) {
  for (int64_t k = 0; k < depth; ++k) {
    typename V::F low;
    typename V::F high;
    V::LoadPairs(panel + k * 2 * V::kLanes, low, high);
    V::Store(out + k * 2 * V::kLanes, low);
    V::Store(out + k * 2 * V::kLanes + V::kLanes, high);
  }
}

}  // namespace baton::kernels::cpu
