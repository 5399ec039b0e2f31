// Slots of a dense page that no token is in.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/core/dtype.h"
#include "kernels/kv_format/dense.h"

namespace baton::kernels {

// Sets keys, values and scales of slots [first_slot, page_tokens) of `page` to zero bytes.
inline void ZeroSlots(const DensePageLayout& layout, int32_t first_slot, std::byte* page) {
  const auto slots = static_cast<size_t>(layout.page_tokens - first_slot);
  const size_t element_bytes =
      slots * static_cast<size_t>(layout.head_dim) * DTypeBytes(layout.dtype);
  for (int32_t head = 0; head < layout.kv_heads; ++head) {
    std::memset(page + layout.key_offset(head, first_slot), 0, element_bytes);
    std::memset(page + layout.value_offset(head, first_slot), 0, element_bytes);
    if (layout.has_scales()) {
      std::memset(page + layout.key_scale_offset(head, first_slot), 0, slots * sizeof(float));
      std::memset(page + layout.value_scale_offset(head, first_slot), 0, slots * sizeof(float));
    }
  }
}

}  // namespace baton::kernels
