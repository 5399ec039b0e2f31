#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"

#include "kernels/core/dtype.h"
#include "kernels/core/exec_context.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/isa_kernels.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/workspace.h"
#include "kernels/kv_format/dense.h"
#include "kernels/kv_format/zero_slots.h"
#include "kernels/ops/fp8_params.h"
#include "kernels/ops/params.h"
#include "kernels/ops/validate.h"

namespace baton::kernels::cpu {
namespace {

// Tokens of a task.
constexpr int64_t kTaskTokens = 32;

std::byte* PageOf(const DensePages& pages, const int32_t* table, int64_t token) {
  const auto id = static_cast<size_t>(table[token / pages.layout.page_tokens]);
  return pages.base + id * pages.layout.stride_bytes();
}

// One head's keys or values from `source` on, widened into room[head_dim] if need be.
void EncodeHead(const IsaKernels& isa,
                const std::byte* source,
                const DensePageLayout& layout,
                float* room,
                std::byte* codes,
                std::byte* scale) {
  const auto* x = reinterpret_cast<const float*>(source);
  if (layout.dtype == DType::kBF16) {
    isa.widen(reinterpret_cast<const uint16_t*>(source), layout.head_dim, room);
    x = room;
  }
  *reinterpret_cast<float*>(scale) =
      isa.encode_fp8(x, layout.head_dim, reinterpret_cast<uint8_t*>(codes));
}

void EncodeToken(const IsaKernels& isa, const Fp8EncodeParams& params, int64_t token, float* room) {
  const DensePageLayout& from = params.source.layout;
  const DensePageLayout& to = params.pages.layout;
  const std::byte* source = PageOf(params.source, params.source_table, token);
  std::byte* target = PageOf(params.pages, params.page_table, token);
  const auto from_slot = static_cast<int32_t>(token % from.page_tokens);
  const auto slot = static_cast<int32_t>(token % to.page_tokens);
  for (int32_t head = 0; head < to.kv_heads; ++head) {
    EncodeHead(isa,
               source + from.key_offset(head, from_slot),
               from,
               room,
               target + to.key_offset(head, slot),
               target + to.key_scale_offset(head, slot));
    EncodeHead(isa,
               source + from.value_offset(head, from_slot),
               from,
               room,
               target + to.value_offset(head, slot),
               target + to.value_scale_offset(head, slot));
  }
}

// Leaves zeros behind the last token where this call begins its page.
void ZeroBehind(const Fp8EncodeParams& params) {
  const int64_t last = params.tokens - 1;
  const auto slot = static_cast<int32_t>(last % params.pages.layout.page_tokens);
  if (slot < params.tokens - params.first_token) {
    ZeroSlots(params.pages.layout, slot + 1, PageOf(params.pages, params.page_table, last));
  }
}

}  // namespace

absl::Status Fp8Encode(const IsaKernels& isa,
                       const ExecContext& context,
                       const Fp8EncodeParams& params) {
  if (absl::Status status = Validate(params); !status.ok() || params.tokens == params.first_token) {
    return status;
  }
  const DensePageLayout& layout = params.pages.layout;
  const size_t room_bytes = AttentionScratchBytes(isa, layout.head_dim);  // a head, and more
  if (absl::Status status = CheckWorkspace("fp8_encode", context, room_bytes); !status.ok()) {
    return status;
  }
  const int64_t count = params.tokens - params.first_token;
  const int64_t elements = count * 2 * layout.kv_heads * layout.head_dim;
  ParallelFor(context,
              (count + kTaskTokens - 1) / kTaskTokens,
              elements < kSerialElements,
              [&](int64_t task, int thread) {
                auto* room = reinterpret_cast<float*>(context.workspace->data() +
                                                      static_cast<size_t>(thread) * room_bytes);
                const int64_t begin = params.first_token + task * kTaskTokens;
                const int64_t end = std::min(params.tokens, begin + kTaskTokens);
                for (int64_t token = begin; token < end; ++token) {
                  EncodeToken(isa, params, token, room);
                }
              });
  ZeroBehind(params);
  return absl::OkStatus();
}

}  // namespace baton::kernels::cpu
