#include <cmath>

#include "kernels/core/exec_context.h"
#include "kernels/ops/activations.h"
#include "kernels/ops/params.h"
#include "kernels/ops/validate.h"
#include "kernels/reference/reference_kernels.h"

namespace baton::kernels::reference {

absl::Status SiluMul(const ExecContext&, const SiluMulParams& params) {
  if (absl::Status status = Validate(params); !status.ok()) {
    return status;
  }
  for (int64_t row = 0; row < params.rows; ++row) {
    const float* gate = Floats(params.gate_up) + row * params.gate_up_stride;
    const float* up = gate + params.dim;
    float* out = Floats(params.out) + row * params.out_stride;
    for (int64_t i = 0; i < params.dim; ++i) {
      const double silu = double{gate[i]} / (1.0 + std::exp(-double{gate[i]}));
      out[i] = static_cast<float>(silu * double{up[i]});
    }
  }
  return absl::OkStatus();
}

}  // namespace baton::kernels::reference
