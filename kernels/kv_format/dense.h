// KV format `dense`: keys after RoPE and values, unquantized, in pages of one layer.
//
// Page bytes (version 1), head-major so that a head range is two contiguous runs:
//   K [kv_heads][page_tokens][head_dim]   dtype
//   V [kv_heads][page_tokens][head_dim]   dtype
// A page is the same on the wire and in the pool. Slots past the sequence's length hold zero bytes
// on the wire. Element order is little-endian. Error bound: exact for fp32 pages; one bf16 rounding
// (relative 2^-8) per element for bf16 pages.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/core/dtype.h"

namespace baton::kernels {

struct DensePageLayout {
  static constexpr uint16_t kVersion = 1;

  int32_t page_tokens = 32;
  int32_t kv_heads = 0;
  int32_t head_dim = 0;
  DType dtype = DType::kBF16;

  constexpr bool operator==(const DensePageLayout&) const = default;

  // Elements of one head's keys (or values) in a page.
  constexpr size_t head_elements() const {
    return static_cast<size_t>(page_tokens) * static_cast<size_t>(head_dim);
  }
  constexpr size_t page_bytes() const {
    return 2 * static_cast<size_t>(kv_heads) * head_elements() * DTypeBytes(dtype);
  }
  // Byte offset of the first key (value) element of `head`, `slot`.
  constexpr size_t key_offset(int32_t head, int32_t slot) const {
    return (static_cast<size_t>(head) * head_elements() +
            static_cast<size_t>(slot) * static_cast<size_t>(head_dim)) *
           DTypeBytes(dtype);
  }
  constexpr size_t value_offset(int32_t head, int32_t slot) const {
    return page_bytes() / 2 + key_offset(head, slot);
  }
  // Pages of one layer that hold `tokens` tokens.
  constexpr int32_t pages_for(int64_t tokens) const {
    return static_cast<int32_t>((tokens + page_tokens - 1) / page_tokens);
  }
  // Bytes that one page occupies in the pool: page_bytes rounded up to 64, the alignment of pages.
  constexpr size_t stride_bytes() const { return (page_bytes() + 63) / 64 * 64; }
};

}  // namespace baton::kernels
