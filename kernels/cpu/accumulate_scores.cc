#include <algorithm>
#include <cstdint>

#include "absl/status/status.h"

#include "kernels/core/exec_context.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/isa_kernels.h"
#include "kernels/cpu/parallel.h"
#include "kernels/ops/diffkv_params.h"
#include "kernels/ops/validate.h"

namespace baton::kernels::cpu {
namespace {

// Tokens of a task: their sums stay in a first-level cache while the rows go by.
constexpr int64_t kTaskTokens = 2048;

}  // namespace

absl::Status AccumulateScores(const IsaKernels&,
                              const ExecContext& context,
                              const AccumulateScoresParams& params) {
  if (absl::Status status = Validate(params); !status.ok()) {
    return status;
  }
  int64_t tokens = 0;
  for (int64_t row = 0; row < params.rows; ++row) {
    tokens = std::max(tokens, int64_t{params.positions[row]} + 1 - params.first_token);
  }
  const int64_t chunks = (tokens + kTaskTokens - 1) / kTaskTokens;
  const bool serial = params.rows * params.kv_heads * tokens < kSerialElements;
  ParallelFor(context, params.kv_heads * chunks, serial, [&](int64_t index, int) {
    const int64_t head = index / chunks;
    const int64_t begin = index % chunks * kTaskTokens;
    float* scores = params.scores + head * params.score_stride;
    for (int64_t row = 0; row < params.rows; ++row) {
      const int64_t seen =
          int64_t{params.positions[row]} + (params.own ? 1 : 0) - params.first_token;
      const int64_t end = std::min(begin + kTaskTokens, seen);
      const float* probabilities =
          params.probabilities + (row * params.kv_heads + head) * params.probability_stride;
      for (int64_t token = begin; token < end; ++token) {
        scores[token] += probabilities[token];
      }
    }
  });
  return absl::OkStatus();
}

}  // namespace baton::kernels::cpu
