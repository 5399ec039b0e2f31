#include <cmath>

#include "kernels/core/exec_context.h"
#include "kernels/ops/activations.h"
#include "kernels/ops/params.h"
#include "kernels/ops/validate.h"
#include "kernels/reference/reference_kernels.h"

namespace baton::kernels::reference {

absl::Status RmsNorm(const ExecContext&, const RmsNormParams& params) {
  if (absl::Status status = Validate(params); !status.ok()) {
    return status;
  }
  for (int64_t row = 0; row < params.rows; ++row) {
    for (int64_t group = 0; group < params.groups; ++group) {
      const float* x = Floats(params.x) + row * params.x_stride + group * params.dim;
      float* out = Floats(params.out) + row * params.out_stride + group * params.dim;
      double sum = 0.0;
      for (int64_t i = 0; i < params.dim; ++i) {
        sum += double{x[i]} * double{x[i]};
      }
      const double mean = sum / static_cast<double>(params.dim);
      const float inverse = static_cast<float>(1.0 / std::sqrt(mean + double{params.epsilon}));
      for (int64_t i = 0; i < params.dim; ++i) {
        out[i] = x[i] * inverse * params.weight[i];
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace baton::kernels::reference
