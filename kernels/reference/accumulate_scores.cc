#include <cstdint>

#include "absl/status/status.h"

#include "kernels/core/exec_context.h"
#include "kernels/ops/diffkv_params.h"
#include "kernels/ops/validate.h"
#include "kernels/reference/reference_kernels.h"

namespace baton::kernels::reference {

absl::Status AccumulateScores(const ExecContext&, const AccumulateScoresParams& params) {
  if (absl::Status status = Validate(params); !status.ok()) {
    return status;
  }
  for (int64_t row = 0; row < params.rows; ++row) {
    const int64_t end = int64_t{params.positions[row]} + (params.own ? 1 : 0) - params.first_token;
    for (int64_t head = 0; head < params.kv_heads; ++head) {
      const float* probabilities =
          params.probabilities + (row * params.kv_heads + head) * params.probability_stride;
      float* scores = params.scores + head * params.score_stride;
      for (int64_t token = 0; token < end; ++token) {
        scores[token] += probabilities[token];
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace baton::kernels::reference
