// Checks of what the host knows of the parameters of format `diffkv`: shapes and pointers. What
// lies in the device's memory is the caller's to check.
#pragma once

#include <cstdint>

#include "kernels/kv_format/diffkv.h"
#include "kernels/ops/check_diffkv_geometry.h"
#include "kernels/ops/diffkv_params.h"
#include "kernels/ops/param_checker.h"

namespace baton::kernels::cuda {

// Blocks of a grid's y and z.
inline constexpr int64_t kMaxGridRows = 65535;

// Also that a grid has a row of blocks for every head.
inline void CheckDiffKvGrid(const DiffKvGeometry& geometry, ParamChecker& check) {
  CheckDiffKvGeometry(geometry, check);
  check.Require(geometry.kv_heads <= kMaxGridRows,
                "geometry.kv_heads",
                geometry.kv_heads,
                "must be at most 65535");
}

inline void CheckDiffKvPages(const DiffKvPages& pages, ParamChecker& check) {
  check.NotNull("pages.base", pages.base)
      .Require(reinterpret_cast<uintptr_t>(pages.base) % 16 == 0,
               "pages.base modulo 16",
               static_cast<int64_t>(reinterpret_cast<uintptr_t>(pages.base) % 16),
               "must be 0");
  CheckDiffKvGrid(pages.geometry, check);
}

inline void CheckDiffKvLayer(const DiffKvLayer& layer, ParamChecker& check) {
  check.NotNull("layer.page_table", layer.page_table)
      .NotNull("layer.token_counts", layer.token_counts)
      .Positive("layer.columns", layer.columns);
}

}  // namespace baton::kernels::cuda
