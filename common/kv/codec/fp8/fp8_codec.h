// Executes KV format `fp8`: pages as `dense` has them, of float8_e4m3fn elements.
#pragma once

#include <memory>
#include <span>

#include "absl/status/statusor.h"

#include "common/kv/codec/block_cache.h"
#include "common/kv/codec/codec_context.h"
#include "common/kv/codec/encoded_kv.h"
#include "common/kv/pool/page_pool.h"
#include "kernels/core/step_arrays.h"
#include "kernels/ops/params.h"

namespace baton::kv {

// Borrowed parts outlive it. Executor thread.
class Fp8Codec final : public KvCodec {
 public:
  Fp8Codec(const CodecContext& context,
           PagePool& pool,
           BlockCache& blocks,
           const kernels::DensePageLayout& layout)
      : context_(context), pool_(pool), blocks_(blocks), layout_(layout) {}

  absl::StatusOr<std::unique_ptr<DecodeRows>> Prepare(std::span<const DecodeRow> rows,
                                                      kernels::StepArrays& arrays) override;

  const CodecContext& context() const { return context_; }
  PagePool& pool() const { return pool_; }
  BlockCache& blocks() const { return blocks_; }
  const kernels::DensePageLayout& layout() const { return layout_; }
  kernels::DensePages pages() const { return {.base = pool_.base(), .layout = layout_}; }

 private:
  const CodecContext& context_;
  PagePool& pool_;
  BlockCache& blocks_;
  const kernels::DensePageLayout layout_;
};

}  // namespace baton::kv
