#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"

#include "kernels/core/dtype.h"
#include "kernels/core/exec_context.h"
#include "kernels/core/half.h"
#include "kernels/kv_format/dense.h"
#include "kernels/kv_format/fp8.h"
#include "kernels/kv_format/zero_slots.h"
#include "kernels/ops/activations.h"
#include "kernels/ops/params.h"
#include "kernels/ops/validate.h"
#include "kernels/reference/reference_kernels.h"

namespace baton::kernels::reference {
namespace {

// Writes one head's keys or values to `offset`, and for fp8 their scale to `scale_offset`.
void StoreHead(const float* source,
               const DensePageLayout& layout,
               std::byte* page,
               size_t offset,
               size_t scale_offset) {
  std::byte* target = page + offset;
  if (layout.dtype == DType::kF8E4M3) {
    *reinterpret_cast<float*>(page + scale_offset) =
        EncodeFp8(source, layout.head_dim, reinterpret_cast<uint8_t*>(target));
    return;
  }
  for (int32_t i = 0; i < layout.head_dim; ++i) {
    if (layout.dtype == DType::kF32) {
      reinterpret_cast<float*>(target)[i] = source[i];
    } else {
      reinterpret_cast<uint16_t*>(target)[i] = F32ToBF16(source[i]);
    }
  }
}

}  // namespace

absl::Status KvWrite(const ExecContext&, const KvWriteParams& params) {
  if (absl::Status status = Validate(params); !status.ok()) {
    return status;
  }
  const DensePageLayout& layout = params.pages.layout;
  for (int64_t s = 0; s < params.num_sequences; ++s) {
    const SequenceRows& sequence = params.sequences[s];
    for (int64_t row = sequence.row_begin; row < sequence.row_begin + sequence.row_count; ++row) {
      const int32_t position = params.positions[row];
      const int32_t slot = position % layout.page_tokens;
      const int32_t page_id = sequence.page_table[position / layout.page_tokens];
      std::byte* page = params.pages.base + static_cast<size_t>(page_id) * layout.stride_bytes();
      for (int32_t head = 0; head < layout.kv_heads; ++head) {
        const int64_t offset = int64_t{head} * layout.head_dim;
        StoreHead(Floats(params.k) + row * params.k_stride + offset,
                  layout,
                  page,
                  layout.key_offset(head, slot),
                  layout.key_scale_offset(head, slot));
        StoreHead(Floats(params.v) + row * params.v_stride + offset,
                  layout,
                  page,
                  layout.value_offset(head, slot),
                  layout.value_scale_offset(head, slot));
      }
      const bool is_last = row + 1 == sequence.row_begin + sequence.row_count;
      if (is_last && slot < sequence.row_count) {  // the call has begun the page
        ZeroSlots(layout, slot + 1, page);
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace baton::kernels::reference
