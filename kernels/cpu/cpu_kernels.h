// Ops of the CPU back end: checks, threads and paging above one IsaKernels set. Parameters and
// results are described in kernels/ops/params.h and kernels/ops/diffkv_params.h.
#pragma once

#include "absl/status/status.h"

#include "kernels/core/dtype.h"
#include "kernels/core/exec_context.h"
#include "kernels/cpu/isa_kernels.h"
#include "kernels/ops/diffkv_params.h"
#include "kernels/ops/fp8_params.h"
#include "kernels/ops/hidden_params.h"
#include "kernels/ops/params.h"
#include "kernels/ops/shadowkv_params.h"

namespace baton::kernels::cpu {

// Packed weight: panels of isa.panel_columns output features, each [in_features][panel_columns],
// zero-padded past out_features. bf16 panels hold pairs: the 32-bit lane l of a row is column l in
// its low half and column l + panel_columns / 2 in its high half, so that one load and two cheap
// operations give two fp32 vectors.
size_t PackedMatrixBytes(const IsaKernels& isa,
                         int64_t out_features,
                         int64_t in_features,
                         DType dtype);
absl::Status PackMatrix(const IsaKernels& isa,
                        const ExecContext& context,
                        const PackMatrixParams& params);

absl::Status Embed(const IsaKernels& isa, const ExecContext& context, const EmbedParams& params);
absl::Status RmsNorm(const IsaKernels& isa,
                     const ExecContext& context,
                     const RmsNormParams& params);
absl::Status Matmul(const IsaKernels& isa, const ExecContext& context, const MatmulParams& params);
absl::Status RopeAngles(const IsaKernels& isa,
                        const ExecContext& context,
                        const RopeAnglesParams& params);
absl::Status Rope(const IsaKernels& isa, const ExecContext& context, const RopeParams& params);
absl::Status KvWrite(const IsaKernels& isa,
                     const ExecContext& context,
                     const KvWriteParams& params);
absl::Status PagedAttention(const IsaKernels& isa,
                            const ExecContext& context,
                            const PagedAttentionParams& params);
absl::Status SiluMul(const IsaKernels& isa,
                     const ExecContext& context,
                     const SiluMulParams& params);
absl::Status GatherRows(const IsaKernels& isa,
                        const ExecContext& context,
                        const GatherRowsParams& params);
absl::Status CopyPages(const IsaKernels& isa,
                       const ExecContext& context,
                       const CopyPagesParams& params);

absl::Status AttentionProbabilities(const IsaKernels& isa,
                                    const ExecContext& context,
                                    const AttentionProbabilitiesParams& params);
absl::Status AccumulateScores(const IsaKernels& isa,
                              const ExecContext& context,
                              const AccumulateScoresParams& params);
absl::Status DiffKvClassify(const IsaKernels& isa,
                            const ExecContext& context,
                            const DiffKvClassifyParams& params);
absl::Status DiffKvAssignPages(const IsaKernels& isa,
                               const ExecContext& context,
                               const DiffKvAssignPagesParams& params);
absl::Status DiffKvReleasePages(const IsaKernels& isa,
                                const ExecContext& context,
                                const DiffKvReleasePagesParams& params);
absl::Status DiffKvEncode(const IsaKernels& isa,
                          const ExecContext& context,
                          const DiffKvEncodeParams& params);
absl::Status DiffKvSweep(const IsaKernels& isa,
                         const ExecContext& context,
                         const DiffKvSweepParams& params);
absl::Status DiffKvTakePages(const IsaKernels& isa,
                             const ExecContext& context,
                             const DiffKvTakePagesParams& params);
absl::Status DiffKvAppend(const IsaKernels& isa,
                          const ExecContext& context,
                          const DiffKvAppendParams& params);
absl::Status DiffKvAttention(const IsaKernels& isa,
                             const ExecContext& context,
                             const DiffKvAttentionParams& params);
// Workspace of the shadowkv ops, as OpTable::shadowkv_workspace_bytes.
size_t ShadowKvWorkspaceBytes(const IsaKernels& isa,
                              int threads,
                              const ShadowKvWorkspaceSizes& sizes);
absl::Status ShadowKvEncode(const IsaKernels& isa,
                            const ExecContext& context,
                            const ShadowKvEncodeParams& params);
absl::Status ShadowKvEncodeJoint(const IsaKernels& isa,
                                 const ExecContext& context,
                                 const ShadowKvEncodeJointParams& params);
absl::Status ShadowKvAppend(const IsaKernels& isa,
                            const ExecContext& context,
                            const ShadowKvAppendParams& params);
absl::Status ShadowKvAppendJoint(const IsaKernels& isa,
                                 const ExecContext& context,
                                 const ShadowKvAppendJointParams& params);
absl::Status ShadowKvSelect(const IsaKernels& isa,
                            const ExecContext& context,
                            const ShadowKvSelectParams& params);
absl::Status ShadowKvAttention(const IsaKernels& isa,
                               const ExecContext& context,
                               const ShadowKvAttentionParams& params);
absl::Status Fp8Encode(const IsaKernels& isa,
                       const ExecContext& context,
                       const Fp8EncodeParams& params);
absl::Status HiddenEncode(const IsaKernels& isa,
                          const ExecContext& context,
                          const HiddenEncodeParams& params);
absl::Status HiddenDecode(const IsaKernels& isa,
                          const ExecContext& context,
                          const HiddenDecodeParams& params);

}  // namespace baton::kernels::cpu
