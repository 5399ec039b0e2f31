// Ops of the CPU back end: checks, threads and paging above one IsaKernels set. Parameters and
// results are described in kernels/ops/params.h.
#pragma once

#include "absl/status/status.h"

#include "kernels/core/exec_context.h"
#include "kernels/cpu/isa_kernels.h"
#include "kernels/ops/params.h"

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

}  // namespace baton::kernels::cpu
