// Checks of what the host knows of the parameters of format `diffkv`: shapes and pointers. What
// lies in the device's memory is the caller's to check.
#pragma once

#include <cstdint>

#include "kernels/kv_format/diffkv.h"
#include "kernels/ops/diffkv_params.h"
#include "kernels/ops/param_checker.h"

namespace baton::kernels::cuda {

// Blocks of a grid's y and z.
inline constexpr int64_t kMaxGridRows = 65535;

inline void CheckDiffKvGeometry(const DiffKvGeometry& geometry, ParamChecker& check) {
  check.Positive("geometry.kv_heads", geometry.kv_heads)
      .Require(geometry.kv_heads <= kMaxGridRows,
               "geometry.kv_heads",
               geometry.kv_heads,
               "must be at most 65535")
      .Require(
          geometry.page_bytes() > 0, "geometry.head_dim", geometry.head_dim, "must be 64 or 128");
  for (const DiffKvTier& tier : geometry.tiers) {
    check.Require(DiffKvPageTokens(tier) > 0,
                  "geometry.tiers key_bits",
                  tier.key_bits,
                  "a tier must be K8V8, K8V4, K4V4 or K4V2");
  }
  const DiffKvTier& high = geometry.tiers[kDiffKvHigh];
  const DiffKvTier& low = geometry.tiers[kDiffKvLow];
  check
      .Require(low.key_bits <= high.key_bits,
               "geometry.tiers low key_bits",
               low.key_bits,
               "must not be above the high tier's")
      .Require(low.value_bits <= high.value_bits,
               "geometry.tiers low value_bits",
               low.value_bits,
               "must not be above the high tier's");
}

inline void CheckDiffKvPages(const DiffKvPages& pages, ParamChecker& check) {
  check.NotNull("pages.base", pages.base)
      .Require(reinterpret_cast<uintptr_t>(pages.base) % 16 == 0,
               "pages.base modulo 16",
               static_cast<int64_t>(reinterpret_cast<uintptr_t>(pages.base) % 16),
               "must be 0");
  CheckDiffKvGeometry(pages.geometry, check);
}

inline void CheckDiffKvLayer(const DiffKvLayer& layer, ParamChecker& check) {
  check.NotNull("layer.page_table", layer.page_table)
      .NotNull("layer.token_counts", layer.token_counts)
      .Positive("layer.columns", layer.columns);
}

}  // namespace baton::kernels::cuda
