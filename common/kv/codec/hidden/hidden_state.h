// The hidden states of one prompt, from which a SwiftKV model makes the KV of its upper layers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/status.h"

#include "common/kv/codec/codec_context.h"
#include "common/kv/pool/run_pool.h"
#include "kernels/kv_format/hidden.h"

namespace baton::kv {

// What has to be held: a coded row per prompt token and, for formats that score the prompt, the
// window scores of the upper layers, which only prefill can see.
struct HiddenShape {
  // Rows of a page, the unit of shipping.
  static constexpr int32_t kPageTokens = 32;

  kernels::HiddenRowLayout row;
  int64_t prompt_tokens = 0;
  int64_t score_floats = 0;

  int64_t page_bytes() const { return kPageTokens * static_cast<int64_t>(row.row_bytes()); }
  int32_t row_pages() const {
    return static_cast<int32_t>((prompt_tokens + kPageTokens - 1) / kPageTokens);
  }
  // Scores start at a page of their own.
  int32_t score_pages() const {
    const int64_t bytes = score_floats * static_cast<int64_t>(sizeof(float));
    return static_cast<int32_t>((bytes + page_bytes() - 1) / page_bytes());
  }
  int32_t pages() const { return row_pages() + score_pages(); }
  int64_t bytes() const { return pages() * page_bytes(); }
  // Row pages that will not change any more once `computed` tokens are written.
  int32_t FinalRowPages(int64_t computed) const {
    return computed >= prompt_tokens ? row_pages() : static_cast<int32_t>(computed / kPageTokens);
  }
};

// Owns its run of the pool, memory that ops of the back end work on. Made and destroyed by the
// engine thread; the rest is called by the executor thread while a step refers to the request, by
// the engine thread when none does.
class HiddenState {
 public:
  // `run` holds shape.bytes().
  HiddenState(const CodecContext& context, RunPool& pool, RunPool::Run run, HiddenShape shape);
  ~HiddenState();
  HiddenState(const HiddenState&) = delete;
  HiddenState& operator=(const HiddenState&) = delete;

  // Codes rows of `x`, [rows][width], consecutive prompt tokens from `token_begin` on. With the
  // prompt's first the scores, and what is behind the last, are zeroed, so that shipped bytes are a
  // function of the prompt.
  absl::Status Write(int64_t token_begin, int64_t rows, const void* x, int64_t stride);
  // The rows as they were coded, in activations of the back end: [rows][width].
  absl::Status Read(int64_t token_begin, int64_t rows, void* out) const;
  // [score_floats], in the bytes that are shipped; null for a format that doesn't score.
  float* scores() const;

  const HiddenShape& shape() const { return shape_; }
  // Pages [begin, begin + count), which lie one behind the other.
  std::span<std::byte> pages(int32_t begin, int32_t count) const;

 private:
  std::byte* row(int64_t token) const;

  const CodecContext& context_;
  RunPool& pool_;
  const RunPool::Run run_;
  const HiddenShape shape_;
  std::byte* const base_;
};

}  // namespace baton::kv
