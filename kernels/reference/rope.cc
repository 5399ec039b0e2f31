#include "kernels/core/exec_context.h"
#include "kernels/ops/activations.h"
#include "kernels/ops/params.h"
#include "kernels/ops/validate.h"
#include "kernels/reference/reference_kernels.h"

namespace baton::kernels::reference {

absl::Status Rope(const ExecContext&, const RopeParams& params) {
  if (absl::Status status = Validate(params); !status.ok()) {
    return status;
  }
  const int64_t half = params.half_dim;
  for (int64_t row = 0; row < params.rows; ++row) {
    for (int64_t head = 0; head < params.heads; ++head) {
      float* x = Floats(params.x) + row * params.x_stride + head * 2 * half;
      for (int64_t i = 0; i < half; ++i) {
        const float cosine = params.cosines[row * half + i];
        const float sine = params.sines[row * half + i];
        const float first = x[i];
        const float second = x[i + half];
        x[i] = first * cosine - second * sine;
        x[i + half] = second * cosine + first * sine;
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace baton::kernels::reference
