// KV format `dense` as the engine plans it; the bytes are kernels/kv_format/dense.h.
#pragma once

#include <memory>

#include "absl/status/statusor.h"

#include "common/kv/codec/kv_format.h"
#include "kernels/kv_format/dense.h"

namespace baton::kv {

// Unquantized keys and values, one page table per layer. Observation window 1: only the last prompt
// token needs the upper layers. A page is final as soon as its last slot is written, so pages ship
// chunk by chunk; the partly filled last page follows with the last chunk. Every prompt is computed
// in such pages, whatever its format.
class DenseFormat final : public KvFormat {
 public:
  // kInvalidArgument unless every dimension is positive and the dtype is bf16 or f32.
  static absl::StatusOr<std::unique_ptr<DenseFormat>> Create(const KvDimensions& dimensions,
                                                             const KvPageOptions& options);

  KvFormatId id() const override { return KvFormatId::kDense; }
  uint16_t version() const override { return kernels::DensePageLayout::kVersion; }
  int32_t observation_window() const override { return 1; }
  int32_t page_tables() const override { return layers_; }
  int32_t PagesPerTable(int64_t tokens) const override { return layout_.pages_for(tokens); }
  int32_t tokens_per_page() const override { return layout_.page_tokens; }
  size_t page_bytes() const override { return layout_.page_bytes(); }
  size_t stride_bytes() const override { return layout_.stride_bytes(); }
  int32_t FinalPages(int64_t computed, int64_t prompt_tokens) const override;

  const kernels::DensePageLayout& layout() const { return layout_; }

 private:
  DenseFormat(int32_t layers, const kernels::DensePageLayout& layout)
      : layers_(layers), layout_(layout) {}

  int32_t layers_;
  kernels::DensePageLayout layout_;
};

}  // namespace baton::kv
