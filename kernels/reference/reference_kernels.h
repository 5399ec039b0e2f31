// Ops of the reference back end; parameters and results are described in kernels/ops/params.h and
// kernels/ops/diffkv_params.h.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"

#include "kernels/core/dtype.h"
#include "kernels/core/exec_context.h"
#include "kernels/core/half.h"
#include "kernels/ops/diffkv_params.h"
#include "kernels/ops/fp8_params.h"
#include "kernels/ops/hidden_params.h"
#include "kernels/ops/params.h"
#include "kernels/ops/shadowkv_params.h"

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

absl::Status AttentionProbabilities(const ExecContext& context,
                                    const AttentionProbabilitiesParams& params);
absl::Status AccumulateScores(const ExecContext& context, const AccumulateScoresParams& params);
absl::Status DiffKvClassify(const ExecContext& context, const DiffKvClassifyParams& params);
absl::Status DiffKvAssignPages(const ExecContext& context, const DiffKvAssignPagesParams& params);
absl::Status DiffKvReleasePages(const ExecContext& context, const DiffKvReleasePagesParams& params);
absl::Status DiffKvEncode(const ExecContext& context, const DiffKvEncodeParams& params);
absl::Status DiffKvSweep(const ExecContext& context, const DiffKvSweepParams& params);
absl::Status DiffKvTakePages(const ExecContext& context, const DiffKvTakePagesParams& params);
absl::Status DiffKvAppend(const ExecContext& context, const DiffKvAppendParams& params);
absl::Status DiffKvAttention(const ExecContext& context, const DiffKvAttentionParams& params);
size_t ShadowKvWorkspaceBytes(int threads, const ShadowKvWorkspaceSizes& sizes);
absl::Status ShadowKvEncode(const ExecContext& context, const ShadowKvEncodeParams& params);
absl::Status ShadowKvEncodeJoint(const ExecContext& context,
                                 const ShadowKvEncodeJointParams& params);
absl::Status ShadowKvAppend(const ExecContext& context, const ShadowKvAppendParams& params);
absl::Status ShadowKvAppendJoint(const ExecContext& context,
                                 const ShadowKvAppendJointParams& params);
absl::Status ShadowKvSelect(const ExecContext& context, const ShadowKvSelectParams& params);
absl::Status ShadowKvAttention(const ExecContext& context, const ShadowKvAttentionParams& params);
absl::Status Fp8Encode(const ExecContext& context, const Fp8EncodeParams& params);
absl::Status HiddenEncode(const ExecContext& context, const HiddenEncodeParams& params);
absl::Status HiddenDecode(const ExecContext& context, const HiddenDecodeParams& params);

}  // namespace baton::kernels::reference
