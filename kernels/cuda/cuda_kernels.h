// Ops of the CUDA back end; parameters and results are described in kernels/ops. Activations are
// bf16. Every pointer of the parameters, and every pointer in memory that one points to, is memory
// of the device; ops look at shapes alone, the caller has checked what the device reads.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"

#include "kernels/core/dtype.h"
#include "kernels/core/exec_context.h"
#include "kernels/ops/diffkv_params.h"
#include "kernels/ops/fp8_params.h"
#include "kernels/ops/hidden_params.h"
#include "kernels/ops/params.h"
#include "kernels/ops/shadowkv_params.h"

namespace baton::kernels::cuda {

size_t PackedMatrixBytes(int64_t out_features, int64_t in_features, DType dtype);
// cuBLASLt's scratch memory and a bias: 33 MiB.
size_t WorkspaceBytes(int threads, int64_t max_in_features, int64_t max_head_dim);
absl::Status PackMatrix(const ExecContext& context, const PackMatrixParams& params);
// Workspace: MatmulPlans::kScratchBytes and the bias in out's type. kUnimplemented for fp32
// weights.
absl::Status Matmul(const ExecContext& context, const MatmulParams& params);
absl::Status Embed(const ExecContext& context, const EmbedParams& params);
absl::Status RmsNorm(const ExecContext& context, const RmsNormParams& params);
absl::Status RopeAngles(const ExecContext& context, const RopeAnglesParams& params);
absl::Status Rope(const ExecContext& context, const RopeParams& params);
absl::Status KvWrite(const ExecContext& context, const KvWriteParams& params);
absl::Status PagedAttention(const ExecContext& context, const PagedAttentionParams& params);
absl::Status SiluMul(const ExecContext& context, const SiluMulParams& params);
absl::Status GatherRows(const ExecContext& context, const GatherRowsParams& params);
absl::Status CopyPages(const ExecContext& context, const CopyPagesParams& params);
// Workspace: rows x (vocab / 8192, rounded up) x (count + 2) x 4 bytes.
absl::Status TopLogits(const ExecContext& context, const TopLogitsParams& params);

// Of diffkv: pages.base is aligned to 16 bytes, token counts to 8, queries, keys and values of rows
// to 16. No kernel writes `rows`: ops that begin early (runtime/early_launch.h) read them at once.
//
// Pages that are scored must be bf16, head_dim 64 or 128, at most 16 query heads per KV head; q is
// aligned to 16 bytes. Without `combine` rows are written up to probability_stride, zeros behind
// the row's position. Workspace without `lse`: rows x heads x (8 ceil(probability_stride / 128) +
// 4) bytes; with less, several launches of fewer rows.
absl::Status AttentionProbabilities(const ExecContext& context,
                                    const AttentionProbabilitiesParams& params);
absl::Status AccumulateScores(const ExecContext& context, const AccumulateScoresParams& params);
// Nothing changes, the lease's `used` neither, when the lease is too short or a table too narrow,
// and nobody is told: lease as many pages as the tokens can need (DiffKvGeometry::columns_for).
// Encoding leaves out pages whose id is negative.
absl::Status DiffKvAssignPages(const ExecContext& context, const DiffKvAssignPagesParams& params);
absl::Status DiffKvReleasePages(const ExecContext& context, const DiffKvReleasePagesParams& params);
absl::Status DiffKvClassify(const ExecContext& context, const DiffKvClassifyParams& params);
// Source pages must be bf16. Workspace: 8 bytes per KV head and 1024 tokens.
absl::Status DiffKvEncode(const ExecContext& context, const DiffKvEncodeParams& params);
absl::Status DiffKvSweep(const ExecContext& context, const DiffKvSweepParams& params);
// A sequence whose lease or tables are too short stays as it is, and all its actions have high_slot
// -1; so does one that sweeps with actions which are not of the tokens stored. Others go on.
absl::Status DiffKvTakePages(const ExecContext& context, const DiffKvTakePagesParams& params);
// k and v of rows are aligned to 16 bytes. Heads whose action has high_slot -1 stay as they are.
absl::Status DiffKvAppend(const ExecContext& context, const DiffKvAppendParams& params);
// Workspace: 4 bytes x rows x heads x (32 (head_dim + 2) + 1); with less, several launches of fewer
// rows.
absl::Status DiffKvAttention(const ExecContext& context, const DiffKvAttentionParams& params);

// Of shadowkv: bf16, head_dim 64 or 128, at most 16 query heads per KV head.
//
// The bytes that encoding and appending, and selecting and attending, may use.
size_t ShadowKvEncodeWorkspaceBytes(const ShadowKvWorkspaceSizes& sizes);
size_t ShadowKvDecodeWorkspaceBytes(const ShadowKvWorkspaceSizes& sizes);
absl::Status ShadowKvEncode(const ExecContext& context, const ShadowKvEncodeParams& params);
absl::Status ShadowKvAddGrams(const ExecContext& context, const ShadowKvAddGramsParams& params);
int64_t ShadowKvGramNumbers(int64_t columns);
absl::Status ShadowKvFactorLayers(const ExecContext& context,
                                  const ShadowKvFactorLayersParams& params);
absl::Status ShadowKvEncodeJoint(const ExecContext& context,
                                 const ShadowKvEncodeJointParams& params);
absl::Status ShadowKvAppend(const ExecContext& context, const ShadowKvAppendParams& params);
absl::Status ShadowKvAppendJoint(const ExecContext& context,
                                 const ShadowKvAppendJointParams& params);
// bounds.kv_heads, head_dim and max_chunks are needed; q is aligned to 16 bytes.
absl::Status ShadowKvSelect(const ExecContext& context, const ShadowKvSelectParams& params);
// bounds.kv_heads, head_dim and, with chunk_ids, max_budget_tokens are needed; chunk_ids_stride is
// at least every budget. With less workspace, several launches.
absl::Status ShadowKvAttention(const ExecContext& context, const ShadowKvAttentionParams& params);

// Source pages must be bf16.
absl::Status Fp8Encode(const ExecContext& context, const Fp8EncodeParams& params);

absl::Status HiddenEncode(const ExecContext& context, const HiddenEncodeParams& params);
absl::Status HiddenDecode(const ExecContext& context, const HiddenDecodeParams& params);

}  // namespace baton::kernels::cuda
