#include <cmath>

#include "kernels/ops/validate.h"
#include "kernels/reference/reference_kernels.h"

namespace baton::kernels::reference {

// The angle is rounded to fp32 before the cosine, as HuggingFace's rotary embedding does.
absl::Status RopeAngles(const ExecContext&, const RopeAnglesParams& params) {
  if (absl::Status status = Validate(params); !status.ok()) {
    return status;
  }
  for (int64_t row = 0; row < params.rows; ++row) {
    for (int64_t i = 0; i < params.half_dim; ++i) {
      const float angle = static_cast<float>(params.positions[row]) * params.inverse_frequencies[i];
      params.cosines[row * params.half_dim + i] = static_cast<float>(std::cos(double{angle}));
      params.sines[row * params.half_dim + i] = static_cast<float>(std::sin(double{angle}));
    }
  }
  return absl::OkStatus();
}

}  // namespace baton::kernels::reference
