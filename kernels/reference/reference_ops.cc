#include "kernels/reference/reference_ops.h"

#include "kernels/ops/op_table.h"
#include "kernels/ops/top_logits_host.h"
#include "kernels/reference/reference_kernels.h"

namespace baton::kernels {

const OpTable& ReferenceOps() {
  static constexpr OpTable kTable = {
      .name = "reference",
      .packed_matrix_bytes = reference::PackedMatrixBytes,
      .pack_matrix = reference::PackMatrix,
      .workspace_bytes = [](int, int64_t, int64_t) -> size_t { return 0; },
      .embed = reference::Embed,
      .rms_norm = reference::RmsNorm,
      .matmul = reference::Matmul,
      .rope_angles = reference::RopeAngles,
      .rope = reference::Rope,
      .kv_write = reference::KvWrite,
      .paged_attention = reference::PagedAttention,
      .silu_mul = reference::SiluMul,
      .gather_rows = reference::GatherRows,
      .copy_pages = reference::CopyPages,
      .top_logits = TopLogitsOnHost,
      .attention_probabilities = reference::AttentionProbabilities,
      .accumulate_scores = reference::AccumulateScores,
      .diffkv_classify = reference::DiffKvClassify,
      .diffkv_assign_pages = reference::DiffKvAssignPages,
      .diffkv_release_pages = reference::DiffKvReleasePages,
      .diffkv_encode = reference::DiffKvEncode,
      .diffkv_sweep = reference::DiffKvSweep,
      .diffkv_take_pages = reference::DiffKvTakePages,
      .diffkv_append = reference::DiffKvAppend,
      .diffkv_attention = reference::DiffKvAttention,
      .shadowkv_workspace_bytes = reference::ShadowKvWorkspaceBytes,
      .shadowkv_encode = reference::ShadowKvEncode,
      .shadowkv_encode_joint = reference::ShadowKvEncodeJoint,
      .shadowkv_append = reference::ShadowKvAppend,
      .shadowkv_append_joint = reference::ShadowKvAppendJoint,
      .shadowkv_select = reference::ShadowKvSelect,
      .shadowkv_attention = reference::ShadowKvAttention,
      .fp8_encode = reference::Fp8Encode,
      .hidden_encode = reference::HiddenEncode,
      .hidden_decode = reference::HiddenDecode,
  };
  return kTable;
}

}  // namespace baton::kernels
