#include "kernels/cuda/cuda_ops.h"

#include <algorithm>
#include <cstddef>
#include <cstdlib>

#include "absl/base/call_once.h"

#include "kernels/core/dtype.h"
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/dominant_subspace.h"
#include "kernels/cuda/runtime/device.h"
#include "kernels/kv_format/shadowkv.h"
#include "kernels/ops/gathered_op.h"
#include "kernels/ops/op_table.h"
#include "kernels/ops/shadowkv_params.h"

namespace baton::kernels {
namespace {

size_t ShadowKvWorkspaceBytes(int /*threads*/, const ShadowKvWorkspaceSizes& sizes) {
  return std::max(cuda::ShadowKvEncodeWorkspaceBytes(sizes),
                  cuda::ShadowKvDecodeWorkspaceBytes(sizes));
}

// The driver gives streams eight connections to the device unless it is told otherwise, before its
// first call: what is launched on one of two streams that share one waits for the other's. 32 are
// the most, more than a worker has streams.
void GiveStreamsConnections() {
  constexpr int kKeepWhatIsSet = 0;
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", kKeepWhatIsSet);
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
      .embed = GatheredOp<cuda::Embed>,
      .rms_norm = GatheredOp<cuda::RmsNorm>,
      .matmul = GatheredOp<cuda::Matmul>,
      .rope_angles = GatheredOp<cuda::RopeAngles>,
      .rope = GatheredOp<cuda::Rope>,
      .kv_write = GatheredOp<cuda::KvWrite>,
      .paged_attention = GatheredOp<cuda::PagedAttention>,
      .silu_mul = GatheredOp<cuda::SiluMul>,
      .gather_rows = GatheredOp<cuda::GatherRows>,
      .copy_pages = GatheredOp<cuda::CopyPages>,
      .top_logits = GatheredOp<cuda::TopLogits>,
      .attention_probabilities = GatheredOp<cuda::AttentionProbabilities>,
      .accumulate_scores = GatheredOp<cuda::AccumulateScores>,
      .diffkv_classify = GatheredOp<cuda::DiffKvClassify>,
      .diffkv_assign_pages = GatheredOp<cuda::DiffKvAssignPages>,
      .diffkv_release_pages = GatheredOp<cuda::DiffKvReleasePages>,
      .diffkv_encode = GatheredOp<cuda::DiffKvEncode>,
      .diffkv_sweep = GatheredOp<cuda::DiffKvSweep>,
      .diffkv_take_pages = GatheredOp<cuda::DiffKvTakePages>,
      .diffkv_append = GatheredOp<cuda::DiffKvAppend>,
      .diffkv_attention = GatheredOp<cuda::DiffKvAttention>,
      .shadowkv_workspace_bytes = ShadowKvWorkspaceBytes,
      .shadowkv_cached_values = ShadowKvCachedValues::kStored,
      .shadowkv_encode = GatheredOp<cuda::ShadowKvEncode>,
      .shadowkv_factor_layers = GatheredOp<cuda::ShadowKvFactorLayers>,
      .shadowkv_factored_rank = cuda::LargestIteratedRank,
      .shadowkv_add_grams = GatheredOp<cuda::ShadowKvAddGrams>,
      .shadowkv_gram_numbers = cuda::ShadowKvGramNumbers,
      .shadowkv_encode_joint = GatheredOp<cuda::ShadowKvEncodeJoint>,
      .shadowkv_append = GatheredOp<cuda::ShadowKvAppend>,
      .shadowkv_append_joint = GatheredOp<cuda::ShadowKvAppendJoint>,
      .shadowkv_select = GatheredOp<cuda::ShadowKvSelect>,
      .shadowkv_attention = GatheredOp<cuda::ShadowKvAttention>,
      .fp8_encode = GatheredOp<cuda::Fp8Encode>,
      .hidden_encode = GatheredOp<cuda::HiddenEncode>,
      .hidden_decode = GatheredOp<cuda::HiddenDecode>,
  };
  static absl::once_flag told;
  absl::call_once(told, GiveStreamsConnections);
  return cuda::CurrentDevice().ok() ? &kTable : nullptr;
}

}  // namespace baton::kernels
