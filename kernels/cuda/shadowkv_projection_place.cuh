// Which elements of keys are multiplied at a time.
#pragma once

#include <cstdint>

#include "kernels/kv_format/shadowkv.h"

namespace baton::kernels::cuda::shadowkv {

// kPairs pairs of a head from `pair` on. Heads come in turn for the same pairs, so that what turns
// their keys is read once.
template <int kPairs>
struct ProjectionPlace {
  int32_t layer = 0;
  int32_t pair = 0;
  int32_t head = 0;

  __device__ void Advance(const ShadowKvConfig& config) {
    if (++head < config.kv_heads) return;
    head = 0;
    pair += kPairs;
    if (pair < config.head_dim / 2) return;
    pair = 0;
    ++layer;
  }
};

}  // namespace baton::kernels::cuda::shadowkv
