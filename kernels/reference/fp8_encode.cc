#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"

#include "kernels/core/exec_context.h"
#include "kernels/kv_format/dense.h"
#include "kernels/kv_format/fp8.h"
#include "kernels/kv_format/zero_slots.h"
#include "kernels/ops/fp8_params.h"
#include "kernels/ops/params.h"
#include "kernels/ops/validate.h"
#include "kernels/reference/reference_kernels.h"

namespace baton::kernels::reference {
namespace {

std::byte* PageOf(const DensePages& pages, const int32_t* table, int64_t token) {
  const auto id = static_cast<size_t>(table[token / pages.layout.page_tokens]);
  return pages.base + id * pages.layout.stride_bytes();
}

// One head's keys or values from `source` on.
void EncodeHead(const std::byte* source,
                const DensePageLayout& layout,
                std::byte* codes,
                std::byte* scale) {
  std::vector<float> x(static_cast<size_t>(layout.head_dim));
  for (size_t i = 0; i < x.size(); ++i) {
    x[i] = LoadElement(source, layout.dtype, i);
  }
  *reinterpret_cast<float*>(scale) =
      EncodeFp8(x.data(), layout.head_dim, reinterpret_cast<uint8_t*>(codes));
}

}  // namespace

absl::Status Fp8Encode(const ExecContext& /*context*/, const Fp8EncodeParams& params) {
  if (absl::Status status = Validate(params); !status.ok()) {
    return status;
  }
  const DensePageLayout& from = params.source.layout;
  const DensePageLayout& to = params.pages.layout;
  for (int64_t token = params.first_token; token < params.tokens; ++token) {
    const std::byte* source = PageOf(params.source, params.source_table, token);
    std::byte* target = PageOf(params.pages, params.page_table, token);
    const auto from_slot = static_cast<int32_t>(token % from.page_tokens);
    const auto slot = static_cast<int32_t>(token % to.page_tokens);
    for (int32_t head = 0; head < to.kv_heads; ++head) {
      EncodeHead(source + from.key_offset(head, from_slot),
                 from,
                 target + to.key_offset(head, slot),
                 target + to.key_scale_offset(head, slot));
      EncodeHead(source + from.value_offset(head, from_slot),
                 from,
                 target + to.value_offset(head, slot),
                 target + to.value_scale_offset(head, slot));
    }
    if (token + 1 == params.tokens && slot < params.tokens - params.first_token) {
      ZeroSlots(to, slot + 1, target);
    }
  }
  return absl::OkStatus();
}

}  // namespace baton::kernels::reference
