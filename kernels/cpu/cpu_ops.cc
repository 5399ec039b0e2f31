#include "kernels/cpu/cpu_ops.h"

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"

#include "kernels/core/dtype.h"
#include "kernels/core/exec_context.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/isa_kernels.h"
#include "kernels/cpu/workspace.h"
#include "kernels/ops/op_table.h"
#include "kernels/ops/shadowkv_params.h"
#include "kernels/ops/top_logits_host.h"

namespace baton::kernels {
namespace {

// An op of the table: the shared driver `op` bound to one instruction set.
template <const cpu::IsaKernels& isa, auto op, typename Params>
absl::Status Bind(const ExecContext& context, const Params& params) {
  return op(isa, context, params);
}

template <const cpu::IsaKernels& isa>
size_t BindPackedMatrixBytes(int64_t out_features, int64_t in_features, DType dtype) {
  return cpu::PackedMatrixBytes(isa, out_features, in_features, dtype);
}

template <const cpu::IsaKernels& isa>
size_t BindWorkspaceBytes(int threads, int64_t /*max_in_features*/, int64_t max_head_dim) {
  return cpu::WorkspaceBytes(isa, threads, max_head_dim);
}

template <const cpu::IsaKernels& isa>
size_t BindShadowKvWorkspaceBytes(int threads, const ShadowKvWorkspaceSizes& sizes) {
  return cpu::ShadowKvWorkspaceBytes(isa, threads, sizes);
}

template <const cpu::IsaKernels& isa>
const OpTable& Table() {
  static const OpTable kTable = {
      .name = isa.name,
      .packed_matrix_bytes = BindPackedMatrixBytes<isa>,
      .pack_matrix = Bind<isa, cpu::PackMatrix>,
      .workspace_bytes = BindWorkspaceBytes<isa>,
      .embed = Bind<isa, cpu::Embed>,
      .rms_norm = Bind<isa, cpu::RmsNorm>,
      .matmul = Bind<isa, cpu::Matmul>,
      .rope_angles = Bind<isa, cpu::RopeAngles>,
      .rope = Bind<isa, cpu::Rope>,
      .kv_write = Bind<isa, cpu::KvWrite>,
      .paged_attention = Bind<isa, cpu::PagedAttention>,
      .silu_mul = Bind<isa, cpu::SiluMul>,
      .gather_rows = Bind<isa, cpu::GatherRows>,
      .copy_pages = Bind<isa, cpu::CopyPages>,
      .top_logits = TopLogitsOnHost,
      .attention_probabilities = Bind<isa, cpu::AttentionProbabilities>,
      .accumulate_scores = Bind<isa, cpu::AccumulateScores>,
      .diffkv_classify = Bind<isa, cpu::DiffKvClassify>,
      .diffkv_assign_pages = Bind<isa, cpu::DiffKvAssignPages>,
      .diffkv_release_pages = Bind<isa, cpu::DiffKvReleasePages>,
      .diffkv_encode = Bind<isa, cpu::DiffKvEncode>,
      .diffkv_sweep = Bind<isa, cpu::DiffKvSweep>,
      .diffkv_take_pages = Bind<isa, cpu::DiffKvTakePages>,
      .diffkv_append = Bind<isa, cpu::DiffKvAppend>,
      .diffkv_attention = Bind<isa, cpu::DiffKvAttention>,
      .shadowkv_workspace_bytes = BindShadowKvWorkspaceBytes<isa>,
      .shadowkv_encode = Bind<isa, cpu::ShadowKvEncode>,
      .shadowkv_encode_joint = Bind<isa, cpu::ShadowKvEncodeJoint>,
      .shadowkv_append = Bind<isa, cpu::ShadowKvAppend>,
      .shadowkv_append_joint = Bind<isa, cpu::ShadowKvAppendJoint>,
      .shadowkv_select = Bind<isa, cpu::ShadowKvSelect>,
      .shadowkv_attention = Bind<isa, cpu::ShadowKvAttention>,
      .fp8_encode = Bind<isa, cpu::Fp8Encode>,
      .hidden_encode = Bind<isa, cpu::HiddenEncode>,
      .hidden_decode = Bind<isa, cpu::HiddenDecode>,
  };
  return kTable;
}

}  // namespace

const OpTable* CpuOpsFor(CpuIsa isa) {
  switch (isa) {
    case CpuIsa::kPortable:
      return &Table<cpu::kPortableKernels>();
#if defined(__x86_64__) && !defined(BATON_PORTABLE_KERNELS_ONLY)
    case CpuIsa::kAvx2:
      if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
        return &Table<cpu::kAvx2Kernels>();
      }
      return nullptr;
    case CpuIsa::kAvx512:
      if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
          __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
        return &Table<cpu::kAvx512Kernels>();
      }
      return nullptr;
#else
    case CpuIsa::kAvx2:
    case CpuIsa::kAvx512:
      return nullptr;
#endif
  }
  return nullptr;
}

const OpTable& CpuOps() {
  for (const CpuIsa isa : {CpuIsa::kAvx512, CpuIsa::kAvx2}) {
    if (const OpTable* table = CpuOpsFor(isa); table != nullptr) {
      return *table;
    }
  }
  return *CpuOpsFor(CpuIsa::kPortable);
}

}  // namespace baton::kernels
