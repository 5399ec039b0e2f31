// Executes KV format `fp8`: pages as `dense` has them, of float8_e4m3fn elements.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"

#include "common/kv/codec/codec_context.h"
#include "common/kv/codec/encoded_kv.h"
#include "common/kv/codec/host_codec.h"
#include "common/kv/pool/page_pool.h"
#include "kernels/ops/params.h"

namespace baton::kv {

// Borrowed parts outlive it. Executor thread.
class Fp8Codec final : public HostCodec {
 public:
  Fp8Codec(const CodecContext& context, PagePool& pool, const kernels::DensePageLayout& layout)
      : context_(context), pool_(pool), layout_(layout) {}

  absl::Status Append(std::span<const DecodeRow> rows, const KvEntries& entries) override;
  absl::Status Attend(std::span<const DecodeRow> rows, const KvQueries& queries) override;

  const CodecContext& context() const { return context_; }
  PagePool& pool() const { return pool_; }
  const kernels::DensePageLayout& layout() const { return layout_; }
  kernels::DensePages pages() const { return {.base = pool_.base(), .layout = layout_}; }

 private:
  // Fills sequences_ and positions_ for a stored layer.
  void ListSequences(std::span<const DecodeRow> rows, int32_t kv_layer);

  const CodecContext& context_;
  PagePool& pool_;
  const kernels::DensePageLayout layout_;
  std::vector<kernels::SequenceRows> sequences_;
  std::vector<int32_t> positions_;  // by row of the call's arrays
};

}  // namespace baton::kv
