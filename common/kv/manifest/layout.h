// The layout on which both sides of a hand-off must agree.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "kernels/kv_format/dense.h"
#include "proto/baton/kv/v1/manifest.pb.h"

namespace baton::kv {

// Layout of a model whose KV is kept in `dense` pages. `layers` counts stored KV layers.
v1::KvLayout DenseLayout(uint64_t model_fingerprint,
                         int32_t layers,
                         const kernels::DensePageLayout& page);

// kFailedPrecondition (LAYOUT_MISMATCH) naming the first field that differs and both values.
absl::Status CheckLayout(const v1::KvLayout& ours, const v1::KvLayout& theirs);

// The sizes that place a page of a sequence's prompt in its window: [layers][pages_per_layer] pages
// of page_bytes each.
struct WindowGeometry {
  int32_t layers = 0;
  int32_t kv_heads = 0;
  int64_t page_tokens = 0;
  int64_t page_bytes = 0;
  int64_t prompt_tokens = 0;
  int64_t pages_per_layer = 0;

  int64_t offset(int64_t layer, int64_t page) const {
    return (layer * pages_per_layer + page) * page_bytes;
  }
  int64_t window_bytes() const { return offset(layers, 0); }
};

// kInvalidArgument naming the field when the layout or the prompt's length make no sense. Every
// product of the fields fits in 62 bits.
absl::StatusOr<WindowGeometry> MakeWindowGeometry(const v1::KvLayout& layout,
                                                  int64_t prompt_tokens);

}  // namespace baton::kv
