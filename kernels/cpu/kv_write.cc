#include <cstddef>
#include <cstdint>
#include <cstring>

#include "absl/status/status.h"

#include "kernels/core/dtype.h"
#include "kernels/core/exec_context.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/isa_kernels.h"
#include "kernels/cpu/parallel.h"
#include "kernels/kv_format/dense.h"
#include "kernels/kv_format/zero_slots.h"
#include "kernels/ops/activations.h"
#include "kernels/ops/params.h"
#include "kernels/ops/validate.h"

namespace baton::kernels::cpu {
namespace {

// Writes one head's keys or values to `offset`, and for fp8 their scale to `scale_offset`.
void StoreHead(const IsaKernels& isa,
               const float* source,
               const DensePageLayout& layout,
               std::byte* page,
               size_t offset,
               size_t scale_offset) {
  std::byte* target = page + offset;
  if (layout.dtype == DType::kF8E4M3) {
    *reinterpret_cast<float*>(page + scale_offset) =
        isa.encode_fp8(source, layout.head_dim, reinterpret_cast<uint8_t*>(target));
  } else if (layout.dtype == DType::kF32) {
    std::memcpy(target, source, static_cast<size_t>(layout.head_dim) * sizeof(float));
  } else {
    isa.narrow(source, layout.head_dim, reinterpret_cast<uint16_t*>(target));
  }
}

void WriteRow(const IsaKernels& isa,
              const KvWriteParams& params,
              const int32_t* page_table,
              int64_t row) {
  const DensePageLayout& layout = params.pages.layout;
  const int32_t position = params.positions[row];
  const int32_t slot = position % layout.page_tokens;
  const auto page_id = static_cast<size_t>(page_table[position / layout.page_tokens]);
  std::byte* page = params.pages.base + page_id * layout.stride_bytes();
  for (int32_t head = 0; head < layout.kv_heads; ++head) {
    const int64_t offset = int64_t{head} * layout.head_dim;
    StoreHead(isa,
              Floats(params.k) + row * params.k_stride + offset,
              layout,
              page,
              layout.key_offset(head, slot),
              layout.key_scale_offset(head, slot));
    StoreHead(isa,
              Floats(params.v) + row * params.v_stride + offset,
              layout,
              page,
              layout.value_offset(head, slot),
              layout.value_scale_offset(head, slot));
  }
}

// Leaves zeros behind the sequence's last row where this call begins the page of that row.
void ZeroBehind(const KvWriteParams& params, const SequenceRows& sequence) {
  const DensePageLayout& layout = params.pages.layout;
  if (sequence.row_count == 0) {
    return;
  }
  const int32_t last = params.positions[sequence.row_begin + sequence.row_count - 1];
  const int32_t slot = last % layout.page_tokens;
  if (slot < sequence.row_count) {
    const auto page = static_cast<size_t>(sequence.page_table[last / layout.page_tokens]);
    ZeroSlots(layout, slot + 1, params.pages.base + page * layout.stride_bytes());
  }
}

}  // namespace

// Threads share the rows of one sequence; the sequences follow one another. Decode rows, one per
// sequence, are too small to share.
absl::Status KvWrite(const IsaKernels& isa,
                     const ExecContext& context,
                     const KvWriteParams& params) {
  if (absl::Status status = Validate(params); !status.ok()) {
    return status;
  }
  const DensePageLayout& layout = params.pages.layout;
  const int64_t row_elements = int64_t{2} * layout.kv_heads * layout.head_dim;
  for (int64_t s = 0; s < params.num_sequences; ++s) {
    const SequenceRows& sequence = params.sequences[s];
    ForRows(context, sequence.row_count, row_elements, [&](int64_t row) {
      WriteRow(isa, params, sequence.page_table, sequence.row_begin + row);
    });
    ZeroBehind(params, sequence);
  }
  return absl::OkStatus();
}

}  // namespace baton::kernels::cpu
