#include <cmath>

#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/parallel.h"
#include "kernels/ops/validate.h"

namespace baton::kernels::cpu {

// The angle is rounded to fp32 before the cosine, as HuggingFace's rotary embedding does. libm's
// cosf and sinf reduce large angles exactly, which positions up to a million need.
absl::Status RopeAngles(const IsaKernels&,
                        const ExecContext& context,
                        const RopeAnglesParams& params) {
  if (absl::Status status = Validate(params); !status.ok()) {
    return status;
  }
  // A sine and a cosine cost about as much as sixteen elements of other row-wise ops.
  ForRows(context, params.rows, 16 * params.half_dim, [&](int64_t row) {
    const auto position = static_cast<float>(params.positions[row]);
    float* cosines = params.cosines + row * params.half_dim;
    float* sines = params.sines + row * params.half_dim;
    for (int64_t i = 0; i < params.half_dim; ++i) {
      const float angle = position * params.inverse_frequencies[i];
      cosines[i] = std::cos(angle);
      sines[i] = std::sin(angle);
    }
  });
  return absl::OkStatus();
}

}  // namespace baton::kernels::cpu
