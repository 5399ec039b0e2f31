// What the engine has to know about a KV format: sizes, page tables, and when pages are final.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include "absl/status/statusor.h"

#include "common/kv/codec/kv_policy.h"
#include "kernels/kv_format/dense.h"

namespace baton::kv {

// The dimensions of the KV that a model stores; `layers` counts stored layers (S + G for SwiftKV).
struct KvDimensions {
  int32_t layers = 0;
  int32_t kv_heads = 0;
  int32_t head_dim = 0;
};

// How pages are cut: tokens per page and the element type where the format leaves a choice.
struct KvPageOptions {
  int32_t page_tokens = 32;
  kernels::DType dtype = kernels::DType::kBF16;
};

// One format with one set of dimensions. The engine plans memory and shipping through this
// interface and never asks what bytes mean; kernels know the bytes and never plan. Immutable, so
// safe from any thread.
class KvFormat {
 public:
  virtual ~KvFormat() = default;

  virtual KvFormatId id() const = 0;
  // Layout version of the page bytes; both sides of a hand-off must agree.
  virtual uint16_t version() const = 0;
  std::string_view name() const { return KvFormatName(id()); }

  // W: the last W prompt tokens run through all layers of a SwiftKV model (swiftkv.md 1.3 and 9.3).
  virtual int32_t observation_window() const = 0;
  // Page tables of a sequence.
  virtual int32_t page_tables() const = 0;
  // Pages that each table needs to hold `tokens` tokens.
  virtual int32_t PagesPerTable(int64_t tokens) const = 0;
  // Tokens that fill a page; page k holds tokens from k x tokens_per_page() on.
  virtual int32_t tokens_per_page() const = 0;
  virtual size_t page_bytes() const = 0;
  // Bytes that a page occupies in the pool; a multiple of 64.
  virtual size_t stride_bytes() const = 0;

  // Pages of each table that will not change any more once `computed` of `prompt_tokens` are in.
  virtual int32_t FinalPages(int64_t computed, int64_t prompt_tokens) const = 0;

  // Bytes of the pages that hold `tokens` tokens, slack of the last page included.
  int64_t ResidentBytes(int64_t tokens) const;
  // tokens x layers x 2 x kv_heads x head_dim x 2: bf16 keys and values, whatever is really stored;
  // the yardstick of every compression ratio.
  static int64_t LogicalBytes(const KvDimensions& dimensions, int64_t tokens);
};

}  // namespace baton::kv
