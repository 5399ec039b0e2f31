// The policy of synthetic sequences in format `diffkv`.
#pragma once

#include "kernels/kv_format/unobserved_range.h"
#include "kernels/ops/diffkv_params.h"

namespace baton::kernels::cuda {

// That which a worker has unless told otherwise. `unobserved`: where ops read the one range of the
// prompt's positions whose queries scored nothing (DiffKvUnobserved).
inline DiffKvPolicy DiffKvDefaultPolicy(const UnobservedRange* unobserved) {
  return {.alpha_high = 1.0f,
          .alpha_low = 0.02f,
          .window = 64,
          .sinks = 0,
          .unobserved = unobserved,
          .unobserved_count = 1};
}

}  // namespace baton::kernels::cuda
