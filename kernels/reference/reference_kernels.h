// Ops of the reference back end; parameters and results are described in kernels/ops/params.h.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"

#include "kernels/core/exec_context.h"
#include "kernels/core/half.h"
#include "kernels/ops/params.h"

namespace baton::kernels::reference {

// Element `index` of an array of `dtype` (f32 or bf16), widened to fp32.
inline float LoadElement(const std::byte* data, DType dtype, size_t index) {
  if (dtype == DType::kF32) {
    return reinterpret_cast<const float*>(data)[index];
  }
  return BF16ToF32(reinterpret_cast<const uint16_t*>(data)[index]);
}

size_t PackedMatrixBytes(int64_t out_features, int64_t in_features, DType dtype);
absl::Status PackMatrix(const ExecContext& context, const PackMatrixParams& params);
absl::Status Embed(const ExecContext& context, const EmbedParams& params);
absl::Status RmsNorm(const ExecContext& context, const RmsNormParams& params);
absl::Status Matmul(const ExecContext& context, const MatmulParams& params);
absl::Status RopeAngles(const ExecContext& context, const RopeAnglesParams& params);
absl::Status Rope(const ExecContext& context, const RopeParams& params);
absl::Status KvWrite(const ExecContext& context, const KvWriteParams& params);
absl::Status PagedAttention(const ExecContext& context, const PagedAttentionParams& params);
absl::Status SiluMul(const ExecContext& context, const SiluMulParams& params);
absl::Status GatherRows(const ExecContext& context, const GatherRowsParams& params);
absl::Status CopyPages(const ExecContext& context, const CopyPagesParams& params);

}  // namespace baton::kernels::reference
