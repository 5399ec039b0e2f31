// Coefficients that the layers of a sequence share, of a block of 64 tokens.
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"

#include "kernels/core/exec_context.h"
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/runtime/cuda_status.h"
#include "kernels/cuda/runtime/device_queue.h"
#include "kernels/cuda/shadowkv_encode_checks.h"
#include "kernels/cuda/shadowkv_keys.cuh"
#include "kernels/cuda/shadowkv_projection.cuh"
#include "kernels/cuda/shadowkv_projection_strip.cuh"
#include "kernels/kv_format/shadowkv.h"
#include "kernels/ops/param_checker.h"
#include "kernels/ops/shadowkv_params.h"

namespace baton::kernels::cuda {
namespace shadowkv {
namespace {

// With kStripRanks rows of the basis at a time enough for rank 1024.
constexpr uint32_t kBlocks = 64;
constexpr int32_t kBlockTokens = static_cast<int32_t>(kShadowKvBlockTokens);

// Nothing happens unless the sequence has a block due.
__global__ void __launch_bounds__(kProjectThreads)
    AppendJointKernel(const __grid_constant__ ShadowKvAppendJointParams params) {
  __shared__ ProjectionShared<kStripRanks> shared;
  const ShadowKvSequence& sequence = params.layers[0];
  const ShadowKvConfig& config = sequence.layout->config;
  const ShadowKvTailLayout tail(*sequence.layout, sequence.max_generated);
  const auto block = tail.BlockDueAt(sequence.position);
  if (!block.has_value()) return;
  const int64_t first = tail.CodedTokensAt(sequence.position);
  const ProjectionGroup group = {.config = &config,
                                 .rope = params.rope,
                                 .position = first,
                                 .tokens = kBlockTokens,
                                 .layers = params.num_layers};
  const CoefficientTarget target = {.section = sequence.joint_tail + tail.joint_block_begin(*block),
                                    .tokens = kBlockTokens,
                                    .group = 0};
  const auto layer_of = [&](int64_t index) -> ProjectedLayer {
    const ShadowKvSequence& layer = params.layers[index];
    return {.basis = layer.prompt + layer.layout->basis,
            .key_bias = params.key_bias == nullptr ? nullptr : params.key_bias[index]};
  };
  const auto keys_of = [&](int64_t index, int32_t token) {
    const ShadowKvSequence& layer = params.layers[index];
    const ShadowKvTailLayout layer_tail(*layer.layout, layer.max_generated);
    return ExactTokens(layer, layer_tail, first).Keys(token);
  };
  for (auto rank = static_cast<int32_t>(blockIdx.x) * kStripRanks; rank < config.rank;
       rank += static_cast<int32_t>(gridDim.x) * kStripRanks) {
    WriteStrip(group, target, rank, layer_of, keys_of, shared);
  }
}

absl::Status Check(const ShadowKvAppendJointParams& params) {
  ParamChecker check("shadowkv_append_joint");
  check.Positive("num_layers", params.num_layers).NotNull("layers", params.layers);
  CheckRopeTables(params.rope, check);
  return check.status();
}

}  // namespace
}  // namespace shadowkv

absl::Status ShadowKvAppendJoint(const ExecContext& context,
                                 const ShadowKvAppendJointParams& params) {
  if (absl::Status status = shadowkv::Check(params); !status.ok()) {
    return status;
  }
  shadowkv::AppendJointKernel<<<shadowkv::kBlocks,
                                shadowkv::kProjectThreads,
                                0,
                                context.queue->stream()>>>(params);
  return ToStatus(cudaGetLastError(), "shadowkv_append_joint");
}

}  // namespace baton::kernels::cuda
