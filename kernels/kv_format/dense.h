// KV formats `dense` and `fp8`: keys after RoPE and values, token by token as they are computed, in
// pages of one layer.
//
// Page bytes (version 1 of either), head-major so that a head range is contiguous in each segment:
//   K [kv_heads][page_tokens][head_dim]   dtype
//   V [kv_heads][page_tokens][head_dim]   dtype
// and for dtype f8e4m3, which is format `fp8`, from the next multiple of 4 bytes on:
//   K scales [kv_heads][page_tokens]      f32
//   V scales [kv_heads][page_tokens]      f32
// A page is the same on the wire and in the pool. Slots past the sequence's length hold zero bytes.
// Element order is little-endian.
//
// An fp8 element is scale x code, rounded to fp32, with one scale per token and KV head as in the
// per-token FP8 cache of SwiftKV appendix B.1: scale = largest magnitude / 448, code = element /
// scale, rounded to nearest even (fp8.h).
//
// Error bound: exact for fp32 pages; one bf16 rounding (relative 2^-8) per element for bf16 pages;
// for fp8 pages max(|x| / 16, scale / 1024), plus the fp32 roundings of a division and a product.
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
  // True for f8e4m3: an element means nothing without its token's scale.
  constexpr bool has_scales() const { return dtype == DType::kF8E4M3; }
  constexpr size_t page_bytes() const {
    return has_scales() ? scales_begin() + 2 * scale_segment_bytes() : 2 * element_segment_bytes();
  }
  // Byte offset of the first key (value) element of `head`, `slot`.
  constexpr size_t key_offset(int32_t head, int32_t slot) const {
    return (static_cast<size_t>(head) * head_elements() +
            static_cast<size_t>(slot) * static_cast<size_t>(head_dim)) *
           DTypeBytes(dtype);
  }
  constexpr size_t value_offset(int32_t head, int32_t slot) const {
    return element_segment_bytes() + key_offset(head, slot);
  }
  // Byte offset of the scale of the keys (values) of `head`, `slot`; only if has_scales().
  constexpr size_t key_scale_offset(int32_t head, int32_t slot) const {
    return scales_begin() + (static_cast<size_t>(head) * static_cast<size_t>(page_tokens) +
                             static_cast<size_t>(slot)) *
                                sizeof(float);
  }
  constexpr size_t value_scale_offset(int32_t head, int32_t slot) const {
    return scale_segment_bytes() + key_scale_offset(head, slot);
  }
  // Pages of one layer that hold `tokens` tokens.
  constexpr int32_t pages_for(int64_t tokens) const {
    return static_cast<int32_t>((tokens + page_tokens - 1) / page_tokens);
  }
  // Bytes that one page occupies in the pool: page_bytes rounded up to 64, the alignment of pages.
  constexpr size_t stride_bytes() const { return (page_bytes() + 63) / 64 * 64; }

 private:
  // All keys, or all values.
  constexpr size_t element_segment_bytes() const {
    return static_cast<size_t>(kv_heads) * head_elements() * DTypeBytes(dtype);
  }
  constexpr size_t scales_begin() const { return (2 * element_segment_bytes() + 3) / 4 * 4; }
  constexpr size_t scale_segment_bytes() const {
    return static_cast<size_t>(kv_heads) * static_cast<size_t>(page_tokens) * sizeof(float);
  }
};

}  // namespace baton::kernels
