// Ops of the CUDA back end; parameters and results are described in kernels/ops. Activations are
// bf16. Every pointer of the parameters, and every pointer in memory that one points to, is memory
// of the device; ops look at shapes alone, the caller has checked what the device reads.
#pragma once

#include "absl/status/status.h"

#include "kernels/core/exec_context.h"
#include "kernels/ops/diffkv_params.h"
#include "kernels/ops/hidden_params.h"
#include "kernels/ops/params.h"

namespace baton::kernels::cuda {

absl::Status Embed(const ExecContext& context, const EmbedParams& params);
absl::Status RmsNorm(const ExecContext& context, const RmsNormParams& params);
absl::Status RopeAngles(const ExecContext& context, const RopeAnglesParams& params);
absl::Status Rope(const ExecContext& context, const RopeParams& params);
absl::Status KvWrite(const ExecContext& context, const KvWriteParams& params);
absl::Status PagedAttention(const ExecContext& context, const PagedAttentionParams& params);
absl::Status SiluMul(const ExecContext& context, const SiluMulParams& params);
absl::Status GatherRows(const ExecContext& context, const GatherRowsParams& params);
absl::Status CopyPages(const ExecContext& context, const CopyPagesParams& params);

// Of diffkv: pages.base is aligned to 16 bytes, token counts to 8, queries, keys and values of rows
// to 16.
//
// Nothing changes, the lease's `used` neither, when the lease is too short or a table too narrow,
// and nobody is told: lease as many pages as the tokens can need (DiffKvGeometry::columns_for).
// Encoding leaves out pages whose id is negative.
absl::Status DiffKvAssignPages(const ExecContext& context, const DiffKvAssignPagesParams& params);
absl::Status DiffKvReleasePages(const ExecContext& context, const DiffKvReleasePagesParams& params);
absl::Status DiffKvClassify(const ExecContext& context, const DiffKvClassifyParams& params);
// Source pages must be bf16. Workspace: 8 bytes per KV head and 1024 tokens.
absl::Status DiffKvEncode(const ExecContext& context, const DiffKvEncodeParams& params);
// k and v of rows are aligned to 16 bytes. A row whose lease or table is too short stays as it is,
// and all its actions have high_slot -1; other rows go on.
absl::Status DiffKvAppend(const ExecContext& context, const DiffKvAppendParams& params);
// Workspace: 4 bytes x rows x heads x (32 (head_dim + 2) + 1); with less, several launches of fewer
// rows.
absl::Status DiffKvAttention(const ExecContext& context, const DiffKvAttentionParams& params);

absl::Status HiddenEncode(const ExecContext& context, const HiddenEncodeParams& params);
absl::Status HiddenDecode(const ExecContext& context, const HiddenDecodeParams& params);

}  // namespace baton::kernels::cuda
