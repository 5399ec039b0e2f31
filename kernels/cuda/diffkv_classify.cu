#include <cuda_runtime.h>

#include <cstdint>

#include "absl/status/status.h"

#include "kernels/core/exec_context.h"
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/diffkv_checks.h"
#include "kernels/cuda/runtime/cuda_status.h"
#include "kernels/cuda/runtime/device_queue.h"
#include "kernels/kv_format/diffkv.h"
#include "kernels/ops/diffkv_params.h"
#include "kernels/ops/diffkv_policy.h"
#include "kernels/ops/param_checker.h"

namespace baton::kernels::cuda {
namespace {

constexpr int kThreads = 256;
// Tokens of one head that a block classifies; a block's counts fit 16 bits.
constexpr int64_t kBlockTokens = 1024;

// Block (x, y) classifies run x of head y and adds its counts to the head's, which are zero before.
__global__ void __launch_bounds__(kThreads)
    ClassifyKernel(const __grid_constant__ DiffKvClassifyParams params) {
  __shared__ uint32_t block_counts;  // high | low << 16
  if (threadIdx.x == 0) block_counts = 0;
  __syncthreads();
  const int64_t head = blockIdx.y;
  const int64_t tokens = params.tokens - params.first_token;
  const int64_t begin = blockIdx.x * kBlockTokens;
  const int64_t end = begin + kBlockTokens < tokens ? begin + kBlockTokens : tokens;
  uint32_t counts = 0;
  for (int64_t i = begin + threadIdx.x; i < end; i += kThreads) {
    const DiffKvClass token_class =
        ClassifyPromptToken(params.policy,
                            params.scores[head * params.score_stride + i],
                            params.first_token + i,
                            params.tokens);
    params.classes[head * tokens + i] = token_class;
    counts += token_class == DiffKvClass::kHigh  ? 1u
              : token_class == DiffKvClass::kLow ? 1u << 16
                                                 : 0u;
  }
  counts = __reduce_add_sync(0xffffffffu, counts);
  if (threadIdx.x % 32 == 0) atomicAdd(&block_counts, counts);
  __syncthreads();
  if (threadIdx.x == 0) {
    int32_t* of_head = params.token_counts + head * kDiffKvTiers;
    atomicAdd(of_head + kDiffKvHigh, static_cast<int32_t>(block_counts & 0xffffu));
    atomicAdd(of_head + kDiffKvLow, static_cast<int32_t>(block_counts >> 16));
  }
}

absl::Status Check(const DiffKvClassifyParams& params) {
  ParamChecker check("diffkv_classify");
  check.NotNegative("first_token", params.first_token)
      .AtLeast("tokens", params.tokens, params.first_token)
      .NotNegative("kv_heads", params.kv_heads)
      .Require(
          params.kv_heads <= kMaxGridRows, "kv_heads", params.kv_heads, "must be at most 65535")
      .NotNegative("policy.window", params.policy.window)
      .Require(params.policy.window <= kDiffKvWindowQueries,
               "policy.window",
               params.policy.window,
               "must be at most 64")
      .NotNegative("policy.sinks", params.policy.sinks);
  if (params.policy.alpha_low < 0.0f || !(params.policy.alpha_high >= params.policy.alpha_low)) {
    check.Require(false,
                  "policy.alpha_low",
                  static_cast<int64_t>(params.policy.alpha_low),
                  "must be in [0, alpha_high]");
  }
  if (params.kv_heads > 0) {
    check.NotNull("token_counts", params.token_counts);
  }
  if (params.kv_heads > 0 && params.tokens > params.first_token) {
    check.NotNull("scores", params.scores)
        .NotNull("classes", params.classes)
        .AtLeast("score_stride", params.score_stride, params.tokens - params.first_token);
  }
  return check.status();
}

}  // namespace

absl::Status DiffKvClassify(const ExecContext& context, const DiffKvClassifyParams& params) {
  if (absl::Status status = Check(params); !status.ok() || params.kv_heads == 0) {
    return status;
  }
  const cudaStream_t stream = context.queue->stream();
  const size_t count_bytes = static_cast<size_t>(params.kv_heads) * kDiffKvTiers * sizeof(int32_t);
  const cudaError_t begun =
      params.held == nullptr
          ? cudaMemsetAsync(params.token_counts, 0, count_bytes, stream)
          : cudaMemcpyAsync(
                params.token_counts, params.held, count_bytes, cudaMemcpyDeviceToDevice, stream);
  if (absl::Status status = ToStatus(begun, "diffkv_classify counts"); !status.ok()) {
    return status;
  }
  const int64_t blocks = (params.tokens - params.first_token + kBlockTokens - 1) / kBlockTokens;
  if (blocks == 0) {
    return absl::OkStatus();
  }
  const dim3 grid(static_cast<uint32_t>(blocks), static_cast<uint32_t>(params.kv_heads));
  ClassifyKernel<<<grid, kThreads, 0, stream>>>(params);
  return ToStatus(cudaGetLastError(), "diffkv_classify");
}

}  // namespace baton::kernels::cuda
