#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "absl/status/status.h"

#include "kernels/core/exec_context.h"
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/diffkv_checks.h"
#include "kernels/cuda/runtime/cuda_status.h"
#include "kernels/cuda/runtime/device_queue.h"
#include "kernels/ops/diffkv_params.h"
#include "kernels/ops/param_checker.h"

namespace baton::kernels::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kBlocksPerMultiprocessor = 8;
// Rows whose probabilities a thread has under way at a time.
constexpr int kRowsAtOnce = 16;

// Thread x of the grid adds up token x of head y, in order of the rows: the sum is the reference's
// to the bit. A token that no row adds to is not written.
__global__ void __launch_bounds__(kThreads, kBlocksPerMultiprocessor)
    AccumulateKernel(const __grid_constant__ AccumulateScoresParams params, int64_t tokens) {
  const int64_t token = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (token >= tokens) return;
  const int64_t head = blockIdx.y;
  // The first position whose row adds to the token.
  const int64_t least = params.first_token + token + (params.own ? 0 : 1);
  const float* source = params.probabilities + head * params.probability_stride + token;
  const int64_t row_stride = params.kv_heads * params.probability_stride;
  float* target = params.scores + head * params.score_stride + token;
  bool added = false;
  float sum = *target;
  for (int64_t begin = 0; begin < params.rows; begin += kRowsAtOnce) {
    float values[kRowsAtOnce];
    bool seen[kRowsAtOnce];
#pragma unroll
    for (int i = 0; i < kRowsAtOnce; ++i) {
      const int64_t row = begin + i;
      // Reads that wait for no other: whatever a row has of a token that it does not see is left.
      const int64_t read = min(row, params.rows - 1);
      values[i] = __ldg(source + read * row_stride);
      seen[i] = row < params.rows && __ldg(params.positions + read) >= least;
    }
#pragma unroll
    for (int i = 0; i < kRowsAtOnce; ++i) {
      sum = seen[i] ? sum + values[i] : sum;
      added |= seen[i];
    }
  }
  if (added) *target = sum;
}

absl::Status Check(const AccumulateScoresParams& params) {
  ParamChecker check("accumulate_scores");
  check.NotNegative("rows", params.rows)
      .NotNegative("kv_heads", params.kv_heads)
      .Require(
          params.kv_heads <= kMaxGridRows, "kv_heads", params.kv_heads, "must be at most 65535");
  if (params.rows > 0 && params.kv_heads > 0) {
    check.NotNull("probabilities", params.probabilities)
        .NotNull("positions", params.positions)
        .NotNull("scores", params.scores)
        .NotNegative("first_token", params.first_token)
        .Positive("probability_stride", params.probability_stride)
        .Positive("score_stride", params.score_stride);
  }
  return check.status();
}

}  // namespace

absl::Status AccumulateScores(const ExecContext& context, const AccumulateScoresParams& params) {
  if (absl::Status status = Check(params);
      !status.ok() || params.rows == 0 || params.kv_heads == 0) {
    return status;
  }
  // Every row's tokens fit both.
  const int64_t tokens = std::min(params.probability_stride, params.score_stride);
  const dim3 grid(static_cast<uint32_t>((tokens + kThreads - 1) / kThreads),
                  static_cast<uint32_t>(params.kv_heads));
  AccumulateKernel<<<grid, kThreads, 0, context.queue->stream()>>>(params, tokens);
  return ToStatus(cudaGetLastError(), "accumulate_scores");
}

}  // namespace baton::kernels::cuda
