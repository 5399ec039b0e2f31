#include "kernels/cuda/cuda_ops.h"

#include "kernels/core/dtype.h"
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/runtime/device.h"
#include "kernels/ops/op_table.h"

namespace baton::kernels {

const OpTable* CudaOps() {
  static constexpr OpTable kTable = {
      .name = "cuda",
      .activations = DType::kBF16,
      .embed = cuda::Embed,
      .rms_norm = cuda::RmsNorm,
      .rope_angles = cuda::RopeAngles,
      .rope = cuda::Rope,
      .kv_write = cuda::KvWrite,
      .paged_attention = cuda::PagedAttention,
      .silu_mul = cuda::SiluMul,
      .gather_rows = cuda::GatherRows,
      .copy_pages = cuda::CopyPages,
      .diffkv_classify = cuda::DiffKvClassify,
      .diffkv_assign_pages = cuda::DiffKvAssignPages,
      .diffkv_release_pages = cuda::DiffKvReleasePages,
      .diffkv_encode = cuda::DiffKvEncode,
      .diffkv_append = cuda::DiffKvAppend,
      .diffkv_attention = cuda::DiffKvAttention,
      .hidden_encode = cuda::HiddenEncode,
      .hidden_decode = cuda::HiddenDecode,
  };
  return cuda::CurrentDevice().ok() ? &kTable : nullptr;
}

}  // namespace baton::kernels
