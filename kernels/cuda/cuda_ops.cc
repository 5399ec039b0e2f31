#include "kernels/cuda/cuda_ops.h"

#include <algorithm>
#include <cstddef>

#include "kernels/core/dtype.h"
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/runtime/device.h"
#include "kernels/ops/op_table.h"
#include "kernels/ops/shadowkv_params.h"

namespace baton::kernels {
namespace {

size_t ShadowKvWorkspaceBytes(int /*threads*/, const ShadowKvWorkspaceSizes& sizes) {
  return std::max(cuda::ShadowKvEncodeWorkspaceBytes(sizes),
                  cuda::ShadowKvDecodeWorkspaceBytes(sizes));
}

}  // namespace

const OpTable* CudaOps() {
  static constexpr OpTable kTable = {
      .name = "cuda",
      .activations = DType::kBF16,
      .tile_rows = 0,
      .packed_matrix_bytes = cuda::PackedMatrixBytes,
      .pack_matrix = cuda::PackMatrix,
      .workspace_bytes = cuda::WorkspaceBytes,
      .embed = cuda::Embed,
      .rms_norm = cuda::RmsNorm,
      .matmul = cuda::Matmul,
      .rope_angles = cuda::RopeAngles,
      .rope = cuda::Rope,
      .kv_write = cuda::KvWrite,
      .paged_attention = cuda::PagedAttention,
      .silu_mul = cuda::SiluMul,
      .gather_rows = cuda::GatherRows,
      .copy_pages = cuda::CopyPages,
      .top_logits = cuda::TopLogits,
      .attention_probabilities = cuda::AttentionProbabilities,
      .accumulate_scores = cuda::AccumulateScores,
      .diffkv_classify = cuda::DiffKvClassify,
      .diffkv_assign_pages = cuda::DiffKvAssignPages,
      .diffkv_release_pages = cuda::DiffKvReleasePages,
      .diffkv_encode = cuda::DiffKvEncode,
      .diffkv_append = cuda::DiffKvAppend,
      .diffkv_attention = cuda::DiffKvAttention,
      .shadowkv_workspace_bytes = ShadowKvWorkspaceBytes,
      .shadowkv_encode = cuda::ShadowKvEncode,
      .shadowkv_encode_joint = cuda::ShadowKvEncodeJoint,
      .shadowkv_append = cuda::ShadowKvAppend,
      .shadowkv_append_joint = cuda::ShadowKvAppendJoint,
      .shadowkv_select = cuda::ShadowKvSelect,
      .shadowkv_attention = cuda::ShadowKvAttention,
      .hidden_encode = cuda::HiddenEncode,
      .hidden_decode = cuda::HiddenDecode,
  };
  return cuda::CurrentDevice().ok() ? &kTable : nullptr;
}

}  // namespace baton::kernels
