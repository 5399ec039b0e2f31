// What every back end asks of the geometry of format `diffkv`.
#pragma once

#include "kernels/kv_format/diffkv.h"
#include "kernels/ops/param_checker.h"

namespace baton::kernels {

// Heads of a size that has a page layout, and tiers that have one, the low one no wider than the
// high.
inline void CheckDiffKvGeometry(const DiffKvGeometry& geometry, ParamChecker& check) {
  check.Positive("geometry.kv_heads", geometry.kv_heads)
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

}  // namespace baton::kernels
